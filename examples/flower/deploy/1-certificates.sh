# A certificate authority of our own, a server certificate for 127.0.0.1, and one key per SuperNode.
. "$(dirname "$0")/settings.sh" && cd "$WHERE"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -keyout ca.key -out ca.crt -subj "/CN=unfed test CA" 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj "/CN=localhost" 2>/dev/null
echo "subjectAltName=IP:127.0.0.1,DNS:localhost" > san.txt
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile san.txt -out server.crt 2>/dev/null
for k in $(seq 0 $((NODES - 1))); do ssh-keygen -q -t ecdsa -b 384 -N "" -C "client $k" -f "node$k" <<< y; done
