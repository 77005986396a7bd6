#!/usr/bin/env bash
# What Keyway makes of an RDMA device, against perftest on the same device in the same run.
#
#   benches/verbs.sh [--device DEVICE] [--port N] [--gid-index N] [--sizes "65536 1048576"] [--rounds N] [--seconds S]
#                    [--epoch 5ms] [--keyway PATH] [--json] [-- OPTION OF keyway bench ...]
#
# For every size, in rounds of alternating order: `ib_read_bw`, `keyway bench --prefill` with one key for each grant, and the same
# with keys replaced every --epoch. Then READs of 64 B one at a time: `ib_read_lat` against `keyway probe`. What is printed are the
# medians over the rounds, and the median of each round's ratio, since machines drift. Both run in loopback: two processes of
# perftest, a broker and a consumer of Keyway, on one port. docs/performance.md says how to read it.
#
# Needs perftest, and keyway built with the feature verbs:
#   cargo build --release -p keyway-cli --features verbs
set -euo pipefail

fail() { echo "verbs.sh: $*" >&2; exit 1; }

device='' port=1 gid_index='' sizes='65536 1048576' rounds=5 seconds=2 epoch=5ms json='' extra=()
keyway=$(dirname "$0")/../target/release/keyway
arguments=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --port) port=$2; shift 2 ;;
    --gid-index) gid_index=$2; shift 2 ;;
    --sizes) sizes=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --epoch) epoch=$2; shift 2 ;;
    --keyway) keyway=$2; shift 2 ;;
    --json) json=1; shift ;;
    --) shift; extra=("$@"); break ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "what is $1? (--help says more)" ;;
  esac
done

for program in ib_read_bw ib_read_lat; do
  command -v $program >/dev/null || fail "$program is not there; install perftest"
done
[ -x "$keyway" ] || fail "$keyway is not there; cargo build --release -p keyway-cli --features verbs, or give --keyway"

# perftest wants to know the processor's frequency and ends where /proc/cpuinfo has none, as in some virtual machines. It measures
# the frequency too, and takes what it has measured if the two differ. The copy is seen by this script alone.
if ! grep -q 'cpu MHz' /proc/cpuinfo; then
  [ "$(id -u)" = 0 ] || fail "/proc/cpuinfo has no 'cpu MHz', without which perftest does not run; as root, this script helps it"
  if [ -z "${KEYWAY_VERBS_SH:-}" ]; then
    KEYWAY_VERBS_SH=1 exec unshare --mount bash "$0" ${arguments[@]+"${arguments[@]}"}
  fi
fi
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
if ! grep -q 'cpu MHz' /proc/cpuinfo; then
  sed 's/^processor.*/&\ncpu MHz\t\t: 2000.000/' /proc/cpuinfo >"$work/cpuinfo"
  mount --bind "$work/cpuinfo" /proc/cpuinfo
  trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; umount /proc/cpuinfo; rm -rf "$work"' EXIT
fi

# The device: the first with an active port, unless it is named.
if [ -z "$device" ]; then
  for state in /sys/class/infiniband/*/ports/"$port"/state; do
    [ -e "$state" ] || fail "there is no RDMA device here"
    if grep -q ACTIVE "$state"; then device=$(echo "$state" | cut -d/ -f5); break; fi
  done
  [ -n "$device" ] || fail "no RDMA device has an active port $port"
fi
there=/sys/class/infiniband/$device/ports/$port
[ -d "$there" ] || fail "there is no port $port of a device $device"

# The GID: on Ethernet the first one of RoCE v2 that holds an IPv4 address, else the first of RoCE v2.
if [ -z "$gid_index" ] && grep -q Ethernet "$there/link_layer"; then
  for type in $(ls "$there/gid_attrs/types" | sort -n); do
    grep -qs 'RoCE v2' "$there/gid_attrs/types/$type" || continue
    [ -n "$gid_index" ] || gid_index=$type
    if grep -q '^0000:0000:0000:0000:0000:ffff:' "$there/gids/$type"; then gid_index=$type; break; fi
  done
  [ -n "$gid_index" ] || fail "port $port of $device has no RoCE v2 GID"
fi
common=(-d "$device" -i "$port" -F)
[ -z "$gid_index" ] || common+=(-x "$gid_index")

# Runs both sides of a perftest program; what the client says goes to $work/client.
perftest() {
  local program=$1; shift
  "$program" "${common[@]}" "$@" >"$work/server" 2>&1 &
  server=$!
  # Until the server listens, on port 18515.
  local tries=0
  until grep -qE ':4853 [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6; do
    kill -0 $server 2>/dev/null || fail "$program: $(tail -3 "$work/server")"
    tries=$((tries + 1)); [ $tries -lt 200 ] || fail "$program does not listen"
    sleep 0.05
  done
  "$program" "${common[@]}" "$@" 127.0.0.1 >"$work/client" 2>&1 || fail "$program $*: $(tail -3 "$work/client")"
  wait $server || true
  server=''
}

# Megabytes (10^6) a second of ib_read_bw, with so many READs. It reports 0 where it could not measure the processor's frequency, on
# a machine with much else to do; then it is asked again.
read_bw() {
  local try rate
  for try in 1 2 3 4 5 6 7 8; do
    perftest ib_read_bw -s "$1" -n "$2" --report_gbits
    rate=$(awk -v size="$1" '$1 == size { print $4 * 125 }' "$work/client")
    case $rate in '' | 0) ;; *) echo "$rate"; return ;; esac
  done
  fail "ib_read_bw says nothing of use after $try tries: $(tail -3 "$work/client")"
}

# As many READs as take about the time that was asked for.
iterations() {
  local rate
  rate=$(read_bw "$1" 200)
  awk -v rate="$rate" -v size="$1" -v seconds="$seconds" \
    'BEGIN { n = int(rate * 1e6 / size * seconds); print n < 200 ? 200 : n }'
}

field() { sed -E "s/.*\"$1\":([^,}]*).*/\1/" "$2"; }

# Measures Keyway; the line of JSON goes to $2.
pull() {
  "$keyway" bench --fabric "verbs:$device" --prefill --size "$1" --seconds "$seconds" --epoch "$3" \
    ${extra[@]+"${extra[@]}"} --json >"$2" || fail "keyway bench --size $1 --epoch $3 has failed: $(cat "$2")"
}

median() { sort -g | awk '{ all[NR] = $1 } END { print NR % 2 ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2 }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f\n", a / b }'; }
say() { [ -n "$json" ] || printf "$@"; }

say '%s, port %s, GID %s; %s rounds of %s s; MB/s of payload\n' "$device" "$port" "${gid_index:-none}" "$rounds" "$seconds"
results=''
for size in $sizes; do
  n=$(iterations "$size")
  # The first run of all warms nothing but caches up; it is not counted.
  pull "$size" "$work/warm" never
  say '\n%9s B %12s %12s %12s %10s %10s %9s\n' "$size" ib_read_bw never "every $epoch" never/ib "$epoch/ib" "$epoch/never"
  : >"$work/ib"; : >"$work/never"; : >"$work/rekeyed"; : >"$work/never_ib"; : >"$work/rekeyed_ib"; : >"$work/kept"; rekeys=0
  for round in $(seq "$rounds"); do
    order='ib never rekeyed'
    [ $((round % 2)) = 1 ] || order='rekeyed never ib'
    for which in $order; do
      case $which in
        ib) ib=$(read_bw "$size" "$n") ;;
        never) pull "$size" "$work/line" never; never=$(field megabytes_per_second "$work/line") ;;
        rekeyed)
          pull "$size" "$work/line" "$epoch"; rekeyed=$(field megabytes_per_second "$work/line")
          rekeys=$((rekeys + $(field rekeys "$work/line"))) ;;
      esac
    done
    echo "$ib" >>"$work/ib"; echo "$never" >>"$work/never"; echo "$rekeyed" >>"$work/rekeyed"
    ratio "$never" "$ib" >>"$work/never_ib"; ratio "$rekeyed" "$ib" >>"$work/rekeyed_ib"
    ratio "$rekeyed" "$never" >>"$work/kept"
    say '%11s %12.1f %12.1f %12.1f %10.3f %10.3f %9.3f\n' "$round" "$ib" "$never" "$rekeyed" \
      "$(tail -1 "$work/never_ib")" "$(tail -1 "$work/rekeyed_ib")" "$(tail -1 "$work/kept")"
  done
  medians=()
  for which in ib never rekeyed never_ib rekeyed_ib kept; do medians+=("$(median <"$work/$which")"); done
  say '%11s %12.1f %12.1f %12.1f %10.3f %10.3f %9.3f   (%s re-keys)\n' median "${medians[@]}" "$rekeys"
  results+=$(printf '%s{"size":%s,"ib_read_bw":%s,"keyway":%s,"keyway_rekeyed":%s,"keyway_per_ib_read_bw":%s,"rekeyed_per_ib_read_bw":%s,"rekeyed_per_keyway":%s,"rekeys":%s}' \
    "${results:+,}" "$size" "${medians[@]}" "$rekeys")
done

# One READ of 64 B at a time, in microseconds.
perftest ib_read_lat -s 64 -n 5000
lat=$(awk '$1 == 64 { print $5 }' "$work/client")
probe=null
if "$keyway" probe --device "$device" --memory 64KiB --json >"$work/probe" 2>"$work/said" || [ -s "$work/probe" ]; then
  probe=$(tr -d '\n' <"$work/probe" | sed -nE 's/.*"latency": *\{([^}]*)\}.*/\1/p' | sed -nE 's/.*"p50_us": *([0-9.]+).*/\1/p')
fi
if [ -n "$json" ]; then
  printf '{"device":"%s","rounds":%s,"seconds":%s,"epoch":"%s","sizes":[%s],"ib_read_lat_us":%s,"keyway_read_us":%s}\n' \
    "$device" "$rounds" "$seconds" "$epoch" "$results" "$lat" "${probe:-null}"
else
  printf '\nREAD of 64 B, one at a time, in microseconds (medians): ib_read_lat %s, keyway probe %s\n' "$lat" "$probe"
fi
