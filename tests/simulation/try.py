import sys, tempfile, time as _t
sys.path[:0] = [__file__.rsplit("/", 2)[0]]
real = _t.perf_counter
from simulation import world
from simulation.world import World, HUB
world.install()
t0 = real()
w = World(tempfile.mkdtemp(dir="/dev/shm", prefix="sim-"))
w.begin_run("one", 25)
print("trained", HUB.now, w.status("one"), real() - t0)
p = w.command("--status")
w.run_until(lambda: bool(w.said))
print(w.said, real() - t0)
t1 = real()
p = w.command("--migrate", "r", "--to", "two", "--mode", sys.argv[1] if len(sys.argv) > 1 else "cold", "--yes")
n = len(w.said)
try:
    w.run_until(lambda: len(w.said) > n)
finally:
    for c, code, out in w.said[n:]:
        print(c, code); print(out)
    print("virtual", HUB.now, "real", real() - t1, "calls", len(w.network.calls), w.trains())
    import glob
    for f in glob.glob(w.directory + "/state/migrations/*/log*"): print(f, open(f).read()[-1500:])
    for f in glob.glob(w.directory + "/two/root/runs/r/attempts/*/log*"): print(f, open(f).read()[-1500:])
