#!/usr/bin/env bash
# Server-side apply cannot empty a map of a custom resource.
#
# kube-apiserver 1.37.2. A manager that owns all keys of a map applies the same object with `{}` for that map. What the
# schema says is `type: object`, and `{}` is one. The answer is 422: the merge removes the last owned key and leaves
# null, which the schema then refuses. On a map that has no keys yet, the same `{}` is taken, so the fault shows only
# at the second apply. Leaving the field out ends in the same way, one level higher, if its parent becomes empty.
# What works: apply the parent without the map, but with another field; or a merge patch that sets the map to null.
set -euo pipefail
source "$(dirname "$0")/apiserver.bash"

ask POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions '{
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "runs.example.com"},
  "spec": {"group": "example.com", "scope": "Namespaced",
    "names": {"plural": "runs", "singular": "run", "kind": "Run", "listKind": "RunList"},
    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
      "properties": {"spec": {"type": "object", "properties": {
        "metrics": {"type": "object", "additionalProperties": {"type": "string"}},
        "step": {"type": "integer"}}}}}}}]}}' >/dev/null

apply() { # NAME SPEC
    ask PATCH "/apis/example.com/v1/namespaces/default/runs/$1?fieldManager=trainer" \
        "{\"apiVersion\": \"example.com/v1\", \"kind\": \"Run\", \"metadata\": {\"name\": \"$1\"}, \"spec\": $2}" \
        application/apply-patch+yaml
}

for _ in $(seq 60); do # until the resource is served
    first=$(apply empty '{"step": 1, "metrics": {}}')
    grep --quiet '"uid"' <<<"$first" && break
    sleep 1
done
expect "an empty map is taken where there was none" "$first" '"metrics":{}'
expect "a map gets a key" "$(apply full '{"step": 1, "metrics": {"loss": "1"}}')" '"metrics":{"loss":"1"}'
expect "the same manager empties it" "$(apply full '{"step": 2, "metrics": {}}')" \
    'spec.metrics in body must be of type object: \"null\"'
expect "it leaves out the parent's only owned field" "$(apply alone '{"metrics": {"loss": "1"}}'; apply alone '{}')" \
    'spec in body must be of type object: \"null\"'
expect "it leaves the map out" "$(apply full '{"step": 2}')" '"spec":{"step":2}'
