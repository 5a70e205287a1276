# Probe of a host without Python: prints sections of plain text until stdin closes; watch/shell_probe.py parses them.
# POSIX sh. Arguments: root, seconds between two polls, fields of nvidia-smi, a folder in the place of / (for tests).
#
# "@NAME WORDS" begins a section, "|TEXT" is a line of it; "@look" and "@end" enclose a poll. Every line is one
# write: another process answers the pings. stdin takes lines of JSON: {"ping": n}, {"pace": seconds}.

root=$1 interval=$2 fields=$3 top=$4
main=$$ known='' idle=0
LC_ALL=C
export LC_ALL
exec 3<&0 </dev/null

section() { # NAME WORDS; the text on stdin
    printf '@%s\n' "$*"
    while IFS= read -r line || [ -n "$line" ]; do printf '|%.2000s\n' "$line"; done
}

listen() {
    while IFS= read -r line; do
        case $line in
        *'"ping"'*)
            number=$(printf '%s\n' "$line" | sed -n 's/.*"ping": *\([0-9][0-9]*\).*/\1/p')
            printf '@clock %s %s\n' "$number" "$(date +%s.%N)"
            kill -USR1 "$main" 2>/dev/null || exit
            ;;
        esac
    done <&3
    kill "$main" 2>/dev/null
}

patiently() { # a hanging driver delays one poll
    if command -v timeout >/dev/null 2>&1; then timeout 20 "$@"; else "$@"; fi
}

query_gpus() { patiently nvidia-smi "--query-gpu=$1" --format=csv,noheader,nounits 2>/dev/null; }

gpus() {
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    if [ -z "$known" ]; then
        if query_gpus "$fields" >/dev/null; then
            known=$fields
        else # one unknown field fails the query
            for field in $(printf '%s\n' "$fields" | tr , ' '); do
                if query_gpus "$field" >/dev/null; then known=$known${known:+,}$field; fi
            done
        fi
    fi
    [ -n "$known" ] || return 0
    query_gpus "$known" | section gpus "$known"
    patiently nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader,nounits 2>/dev/null |
        section apps
}

tpus() {
    found=
    for vendor in "$top"/sys/bus/pci/devices/*/vendor; do
        if read -r word 2>/dev/null <"$vendor" && [ "$word" = 0x1ae0 ] && read -r word <"${vendor%vendor}device"; then
            found=$found$word' '
        fi
    done
    [ -n "$found" ] || return 0
    printf '@tpus %s\n' "$found"
    # shellcheck disable=SC2012
    ls -l "$top"/proc/[0-9]*/fd 2>/dev/null | sed -n \
        -e 's,^.*/proc/\([0-9]*\)/fd:$,pid \1,p' -e 's,^.* -> \(/dev/accel[0-9]*\)$,\1,p' -e 's,^.* -> \(/dev/vfio/[0-9]*\)$,\1,p' |
        awk '$1 == "pid" { pid = $2; next } !seen[pid]++ { print pid }' | section pids
}

facts() {
    uname -n | section name
    uname -srm | section kernel
    getconf _NPROCESSORS_ONLN 2>/dev/null | section cpus
    { getconf GNU_LIBC_VERSION || ldd --version; } 2>&1 | sed -n 1p | section libc
    sed -n '/^PRETTY_NAME=/p' "$top/etc/os-release" 2>/dev/null | section system
    sed -n -e '/^model name/p' -e '/^Model/p' "$top/proc/cpuinfo" 2>/dev/null | sed -n 1p | section cpuinfo
    patiently df -Pk 2>/dev/null | section disks
    for port in "$top"/sys/class/infiniband/*/ports/*; do
        [ -r "$port/state" ] || continue
        device=${port%/ports/*}
        printf '%s|%s|%s|%s|%s\n' "${device##*/}" "${port##*/}" "$(cat "$port/state")" "$(cat "$port/rate" 2>/dev/null)" \
            "$(cat "$port/link_layer" 2>/dev/null)"
    done | section infiniband
    timedatectl show -p NTPSynchronized 2>/dev/null | section synchronized
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    patiently nvidia-smi 2>/dev/null | sed -n '/CUDA/p' | section cuda
    patiently nvidia-smi -L 2>/dev/null | section listing
}

users() { # processes that use accelerators
    pids=$({ tpus; gpus; } 2>/dev/null | awk '/^@/ { in_apps = /^@apps/; in_tpu = /^@pids/; next }
        in_apps { split($0, cell, ","); gsub(/[^0-9]/, "", cell[2]); if (cell[2] != "") print cell[2] }
        in_tpu { sub(/^\|/, ""); print }' | sort -u | tr '\n' ',')
    [ -n "$pids" ] && ps -o pid= -o user= -o etime= -o args= -p "${pids%,}" 2>/dev/null | section users
}

counters() { # of network, RDMA ports and disks
    sed -n '3,4000p' "$top/proc/net/dev" 2>/dev/null | section net
    for device in "$top"/sys/class/net/*/device; do
        [ -e "$device" ] && device=${device%/device} && printf '%s\n' "${device##*/}"
    done | section interfaces
    for port in "$top"/sys/class/infiniband/*/ports/*; do
        [ -r "$port/counters/port_rcv_data" ] || continue
        printf '%s %s %s\n' "$port" "$(cat "$port/counters/port_rcv_data")" "$(cat "$port/counters/port_xmit_data")"
    done | section rdma
    sed -n '1,4000p' "$top/proc/diskstats" 2>/dev/null | section diskstats
    for device in "$top"/sys/block/*; do printf '%s\n' "${device##*/}"; done | section blocks
}

near() { # nearest existing parent of the root
    while [ ! -d "$root" ] && [ "$root" != / ] && [ -n "$root" ]; do root=${root%/*}; done
    printf '%s\n' "${root:-/}"
}

trap 'idle=0' USR1
listen &
turn=0
while :; do
    printf '@look %s\n' "$(date +%s.%N)"
    sed -n 1p "$top/proc/stat" | section stat
    sed -n -e '/^MemTotal:/p' -e '/^MemAvailable:/p' -e '/^MemFree:/p' "$top/proc/meminfo" | section memory
    df -Pk "$(near)" 2>/dev/null | section disk
    counters
    tpus
    gpus
    if [ $((turn % 6)) -eq 0 ]; then facts; users; fi
    printf '@end\n' || exit
    turn=$((turn + 1)) idle=$((idle + interval))
    [ "$idle" -gt 120 ] && exit # no ping for 120 s: a lost connection may never close stdin
    sleep "$interval" || exit
done
