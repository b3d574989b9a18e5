# Sourced by the scripts here: builds etcd and kube-apiserver from their Go modules, and starts both on loopback.
# Needs Go 1.26, curl, openssl and python3. Sets $url; `ask` sends a request as an administrator.

KUBERNETES=v1.37.2
ETCD=v3.7.0

folder=$(mktemp -d)
pids=()
finish() {
    set +e
    for pid in "${pids[@]}"; do kill -KILL "$pid"; wait "$pid"; done 2>/dev/null
    chmod -R u+w "$folder" && rm -rf "$folder"
}
trap finish EXIT

free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))
PYTHON
}

build() { # NAME MODULE@VERSION PACKAGE
    local name=$1 module=${2%@*} version=${2#*@} package=$3
    mkdir "$folder/$name" && cd "$folder/$name"
    go mod init finding 2>/dev/null
    local file
    file=$(go mod download -json "$module@$version" | python3 -c 'import json, sys; print(json.load(sys.stdin)["GoMod"])')
    # Kubernetes replaces its own parts by folders; published, they have version 0.X for 1.X.
    sed -n 's/^\t\(k8s\.io\/[^ ]*\) => \.\/staging.*/\1/p' "$file" | while read -r part; do
        go mod edit -replace "$part=$part@v0.${version#v1.}"
    done
    go mod edit -require "$module@$version"
    go build -mod=mod -trimpath -o "$folder/bin/$name" "$package" 2>"$folder/$name.log" || { tail -n 5 "$folder/$name.log"; exit 2; }
    cd "$folder"
}

start() {
    read -r client peer secure < <(free_ports 3)
    "$folder/bin/etcd" --data-dir "$folder/data" --listen-client-urls "http://127.0.0.1:$client" \
        --advertise-client-urls "http://127.0.0.1:$client" --listen-peer-urls "http://127.0.0.1:$peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer" \
        >"$folder/etcd.log" 2>&1 &
    pids+=($!)
    openssl genrsa -out "$folder/key.pem" 2048 2>/dev/null
    echo 'secret,admin,1,"system:masters"' >"$folder/tokens.csv"
    "$folder/bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$client" --bind-address 127.0.0.1 \
        --secure-port "$secure" --cert-dir "$folder/certificates" --authorization-mode AlwaysAllow \
        --token-auth-file "$folder/tokens.csv" --service-cluster-ip-range 10.0.0.0/24 \
        --service-account-issuer https://finding.example --service-account-key-file "$folder/key.pem" \
        --service-account-signing-key-file "$folder/key.pem" >"$folder/kube-apiserver.log" 2>&1 &
    pids+=($!)
    url=https://127.0.0.1:$secure
    for _ in $(seq 120); do
        [ "$(ask GET /readyz)" = ok ] && return
        sleep 1
    done
    echo "kube-apiserver is not ready" && tail -n 5 "$folder/kube-apiserver.log" && exit 2
}

ask() { # METHOD PATH [BODY [CONTENT-TYPE]]
    curl --silent --insecure --user-agent finding --header "Authorization: Bearer secret" --request "$1" \
        ${3:+--data "$3"} --header "Content-Type: ${4:-application/json}" "$url$2"
}

expect() { # WHAT ANSWER WORDS
    if ! grep --quiet --fixed-strings -- "$3" <<<"$2"; then
        echo "changed: $1"$'\n'"expected: $3"$'\n'"came: $2"
        exit 1
    fi
    echo "as seen: $1: $3"
}

build etcd "go.etcd.io/etcd/server/v3@$ETCD" go.etcd.io/etcd/server/v3
build kube-apiserver "k8s.io/kubernetes@$KUBERNETES" k8s.io/kubernetes/cmd/kube-apiserver
start
