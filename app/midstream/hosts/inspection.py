"""Program that finds what midstream needs to know of a host when it connects."""

from __future__ import annotations

INSPECT_TIMEOUT = 30.0  # seconds

# Prints the home directory and the first Python that can run `midstream_host`: the fleet file's, the PATH's, then one
# that midstream has installed. A host without one can still be watched.
INSPECT = """\
cd; pwd
case $2 in
'~') root=$HOME ;;
'~/'*) root=$HOME/${2#'~/'} ;;
*) root=$2 ;;
esac
for each in "$1" python3 python3.13 python3.12 python3.11 python3.10 python3.9 "$root"/pythons/*/bin/python3; do
    case $each in
    '') continue ;;
    '~/'*) each=$HOME/${each#'~/'} ;;
    esac
    if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then command -v "$each"; exit 0; fi
done
echo
"""
