#!/bin/sh
# exports.sh TABLE - writes the linker's list of exported symbols from the table of hooks.
set -eu
echo "{ global:"
sed -n \
    -e 's/^\(OP\|OWN\)_PAIR(\([A-Za-z0-9_]*\), *\(_pts[zd]\|_ptds\),.*/    \2; \2\3;/p' \
    -e 's/^\(OP\|OWN\)_ONE(\([A-Za-z0-9_]*\),.*/    \2;/p' "$1"
echo "    dlsym; dlvsym; nvmlDeviceGetMemoryInfo; nvmlDeviceGetMemoryInfo_v2;"
echo "    specinf_lend; specinf_role;"
echo "  local: *; };"
