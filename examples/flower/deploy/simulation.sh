# The same app on Flower's own simulator, without SuperNodes: four clients as tasks of ray, on this machine.
. "$(dirname "$0")/settings.sh"
export FLWR_HOME="$WHERE/simulation" RAY_USAGE_STATS_ENABLED=0
mkdir -p "$FLWR_HOME"
flower-superlink --insecure --simulation --host 127.0.0.1 --port "$PORT" --database "$FLWR_HOME/state.db" \
    --disable-runtime-dependency-installation > "$WHERE/logs/simulation.log" 2>&1 &
echo $! > "$WHERE/pids/simulation"
printf '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:%s"\ninsecure = true\n' "$PORT" \
    > "$FLWR_HOME/config.toml"
until flwr ls local > /dev/null 2>&1; do sleep 1; done
unfed flower init "$WHERE/tryout" --nodes 4
flwr run "$WHERE/tryout" local --stream --federation-config 'num-supernodes=4 client-resources-num-cpus=1' \
    --run-config 'mode="both" forget-clients="0"' "$@"
kill "$(cat "$WHERE/pids/simulation")" && rm "$WHERE/pids/simulation"
