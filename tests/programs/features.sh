# Features of a POSIX shell, for bash and dash alike; the output is the same at each run.
set -eu
export LC_ALL=C

# Functions, recursion and many variables.
fib() { if [ "$1" -lt 2 ]; then echo "$1"; else echo $(($(fib $(($1 - 1))) + $(fib $(($1 - 2))))); fi; }
fib 8
i=0
while [ $i -lt 2000 ]; do
    eval "v$i=\$i\$i\$i"
    i=$((i + 1))
done
i=0 sum=0
while [ $i -lt 2000 ]; do
    eval "sum=\$(((sum + v$i) % 1000003))"
    if [ $((i % 3)) -eq 0 ]; then unset "v$i"; fi
    i=$((i + 1))
done
echo "sum $sum, unset ${v3-gone}, left ${v4}"

# Growing strings, patterns, expansions and word splitting.
text=
i=0
while [ $i -lt 1500 ]; do
    text="$text word$i"
    i=$((i + 1))
done
set -- $text
echo "$# words, the first $1, the last one ${text##* }, ${#text} bytes"
while [ $# -gt 1400 ]; do shift 7; done
echo "$# words, ${1%[0-9]}, ${1#word}"
old=$IFS
IFS=:
set -- a:b::c
echo "$#" "$*"
IFS=$old
for name in /etc/pass* /nonexistent-*; do echo "${name##*/}"; done
case $text in *word99\ word100*) echo found ;; *) echo lost ;; esac

# Here documents, pipelines, subshells and command substitution.
cat <<END | tr a-z A-Z
a here document with $((6 * 7)) and $(echo "a substitution with \`echo another\`")
END
i=0
while [ $i -lt 40 ]; do
    echo "$i $( (echo "in a subshell $i"; exit $((i % 4))) && echo yes || echo "no $?")"
    i=$((i + 1))
done
seq 1 3000 | while read -r n; do echo $((n * 7 % 1009)); done | sort -n | uniq | wc -l

# Background jobs, wait, signals and traps.
pids=
for n in 1 2 3 4 5 6 7 8; do
    (big=$(seq 1 $((n * 500))); exit $((n + ${#big} * 0))) &
    pids="$pids $!"
done
for pid in $pids; do
    status=0
    wait "$pid" || status=$?
    printf '%s ' "$status"
done
echo
trap 'echo "a trap with $(seq 1 50 | wc -l) lines"' USR1
kill -USR1 $$
status=0
{ sh -c 'kill -TERM $$' || status=$?; } 2>/dev/null
echo "status $status"
trap 'echo end' EXIT
