"""Table of the operations: flags, keys and words of the terminal UI, and function.

What one face can do, the other can, but for what has a reason here.
"""

from __future__ import annotations

from typing import NamedTuple


class Operation(NamedTuple):
    """One thing that midstream does.

    Attributes:
        name: What it does.
        flags: Flags of the command line.
        keys: ``scope:action`` of `tui.commands.COMMANDS`, and ``:word`` of its `WORDS`.
        function: ``module:name`` of the function that both faces call, in `midstream`; empty: none has both faces.
        reason: Why a face lacks it.
    """

    name: str
    flags: str = ""
    keys: str = ""
    function: str = ""
    reason: str = ""


OPERATIONS = (
    Operation(
        "start a run", "--launch --on --run-id --yes --keep-slice",
        "fleet:launch launch:next launch:previous launch:again", "operations.launch:launch",
    ),
    Operation("start it again", "--restart", "fleet:start_again run:start_again", "operations.launch:restart_target"),
    Operation("stop", "--stop", "fleet:stop run:stop", "operations.stop:stop"),
    Operation("adopt", "--adopt", ":adopt", "launch.adopt_process:adopt_process"),
    Operation(
        "migrate", "--migrate --to --mode --checkpoint --certify-steps --healthy-steps --dry-run",
        "fleet:migrate run:migrate compare:migrate wizard:next wizard:previous wizard:mode wizard:checkpoint "
        "wizard:settings wizard:again wizard:back :migrate",
        "operations.plan_migration:losses",
    ),
    Operation("create a target", "--launch --migrate", "slices:create", "operations.create_target:create_target"),
    Operation("continue", "--continue", "migration:continue", "migrate.migration_process:continue_"),
    Operation("roll back", "--rollback", "migration:rollback", "operations.rollback:discarded"),
    Operation("repair", "--repair", ":repair", "operations.repair:repair"),
    Operation("clean", "--clean", "fleet:leftovers leftovers:remove leftovers:again", "operations.clean:clean"),
    Operation("delete", "--delete", "slices:delete :delete", "operations.delete_target:delete_target"),
    Operation("verify", "--verify", "fleet:verify run:verify", "operations.examine_checkpoint:verify"),
    Operation("verify a migration", "--verify", "fleet:verify", "migrate.proof.recheck:recheck"),
    Operation("compare checkpoints", "--diff", "run:diff", "operations.diff_checkpoints:diff_checkpoints"),
    Operation("configuration", "--config --attempts", "run:diff :config", "watch.resolved_config:read"),
    Operation("compare accelerators", "--compare --with", "wizard:compare", "operations.compare:compare"),
    Operation("check", "--check", ":check", "operations.check:check"),
    Operation("costs", "--cost --since", "fleet:costs costs:period costs:again :costs", "costs.collect:collect"),
    Operation("slices", "--status", "fleet:slices slices:again :slices", "operations.list_slices:list_slices"),
    Operation(
        "status", "--status --filter --columns",
        "fleet:filter fleet:document run:document host:document migration:document "
        "slices:document costs:document :hosts :runs :migrations :host :run :migration :info",
        "listing.documents:run_event",
    ),
    Operation("checkpoints", "--checkpoints", "run:view :checkpoints", "watch.snapshot:RunView"),
    Operation("report", "--report", "run:report :report", "operations.report:write_report"),
    Operation(
        "export a checkpoint", "--export --as --output --model-parallel-size", "run:export",
        "operations.export_checkpoint:export_checkpoint",
    ),
    Operation("log", "--log --process --search --follow", "fleet:log run:process run:full_log log:find log:only "
              "log:follow :log", "operations.run_log:RunLog"),
    Operation(
        "curves", "--metrics --plot --metric --x-axis --x-range --y-range --log-x --log-y --smoothing",
        "curve:export run:metric run:metrics run:axis run:log_x run:log_y run:y_range run:smooth run:smoothing_factor "
        "run:overlay host:metric host:metrics host:log_y host:y_range host:smooth host:smoothing_factor",
        "charts.chart_file:write_chart",
    ),
    Operation("system metrics", "--metrics --system", "fleet:curves", "watch.system_metrics:"),
    Operation(
        "label", "--label --name --tags --note --undo", "fleet:edit run:edit fleet:undo run:undo", "listing.labels:edit"
    ),
    Operation("fleet file", "--init", "fleet:add_hosts", reason="--init writes a new one; a adds hosts to it"),
    # ------------------------------------------------------------------------------------- the command line alone
    Operation("guard", "--guard --tries --guard-lead", reason="it runs as long as the run, without a screen"),
    Operation(
        "import", "--migrate --gqa-layout --rms-epsilon --cast-parameters",
        reason="it is named by a path and facts about a format, once for a run",
    ),
    Operation(
        "divide a checkpoint", "--reshard --processes --output",
        reason="it is named by a path, once; a migration divides its checkpoint by itself",
    ),
    Operation("lost source", "--source-lost", reason="a statement that nothing can check is written out"),
    Operation("save first", "--save-first", reason="S stops and saves a run in the list of runs"),
    Operation("rehearse", "--rehearse", reason="it installs and compiles for minutes, and names a config"),
    Operation("prices", "--price --compile-on", reason="the fleet file has prices, and this machine compiles"),
    Operation("decode", "--deep --tree", reason="the arrays of a checkpoint are thousands of lines for a pager"),
    Operation("serve metrics", "--serve-metrics --bind", reason="a service without a screen"),
    Operation("alerts", "--watch", reason="an open terminal UI sends the same alerts"),
    Operation("run file", "--init-run", reason="it writes a file of this directory, before there is a run"),
    Operation("this machine", "--doctor", reason="for what keeps the terminal UI from starting, too"),
    Operation("of the terminal UI", "--demo --headless --readonly --ascii --record --replay", reason="they start it"),
    Operation(
        "of a command", "--fleet --json --verbose --print-completion --version --help",
        reason="they are about the form of a command line and of its output",
    ),
    # -------------------------------------------------------------------------------------- the terminal UI alone
    Operation("shell", keys="fleet:shell", reason="ssh HOST opens one"),
    Operation(
        "copy", keys="run:copy wizard:copy launch:copy migration:copy slices:copy costs:copy leftovers:copy "
        "compare:copy fleet:copy_name host:copy_name", reason="they copy the command line, or a name for it",
    ),
    Operation(
        "look", keys="fleet:view costs:view host:view migration:view fleet:open fleet:mark fleet:mark_all fleet:unmark "
        "fleet:sort "
        "fleet:reverse fleet:group fleet:hide_finished fleet:columns fleet:back run:back costs:back host:back "
        "migration:back migration:open_run compare:leave slices:dismiss "
        "slices:leave_to launch:back leftovers:back verify:back "
        "run:band run:zoom host:zoom run:outliers host:outliers run:tiles host:tiles "
        "list:cursor list:page pane:page pane:scroll_down pane:scroll_up pane:scroll_home pane:scroll_end log:match "
        "log:level log:window log:wrap log:scroll_left log:scroll_right curve:cross curve:pan curve:zoom_in "
        "curve:zoom_out curve:full_range everywhere:help everywhere:app.command_line everywhere:app.command_palette "
        "everywhere:app.theme everywhere:app.picture everywhere:app.suspend_process everywhere:app.quit :theme :help "
        ":quit", reason="they move on the screen, and change how it looks",
    ),
)  # fmt: skip
