# The SuperLink, with TLS and node authentication; `flwr` is told where it is.
. "$(dirname "$0")/settings.sh"
flower-superlink $TLS --enable-supernode-auth --host 127.0.0.1 --port "$PORT" --database "$DATABASE" \
    --disable-runtime-dependency-installation >> "$WHERE/logs/superlink.log" 2>&1 &
echo $! > "$WHERE/pids/superlink"
printf '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' \
    "$PORT" "$WHERE/ca.crt" > "$FLWR_HOME/config.toml"
until flwr supernode ls local > /dev/null 2>&1; do sleep 1; done
