#!/usr/bin/env bash
# The note of an Event has at most 1,024 bytes, though the refusal counts characters and names another field.
#
# kube-apiserver 1.37.2, events.k8s.io/v1. A note of 600 letters of two bytes each is refused with "can have at most
# 1024 characters", and the field that it names is `message`, which this version of the resource does not have. 512
# such letters are taken. Whoever shortens notes by characters loses Events of people whose language is not English.
set -euo pipefail
source "$(dirname "$0")/apiserver.bash"

record() { # NAME LETTERS
    local note
    note=$(python3 -c "print('\u00e9' * $2)")
    ask POST /apis/events.k8s.io/v1/namespaces/default/events "{
      \"apiVersion\": \"events.k8s.io/v1\", \"kind\": \"Event\", \"metadata\": {\"name\": \"$1\", \"namespace\": \"default\"},
      \"eventTime\": \"2026-11-27T00:00:00.000000Z\", \"reportingController\": \"example.com/finding\",
      \"reportingInstance\": \"finding\", \"action\": \"Look\", \"reason\": \"Looked\", \"type\": \"Normal\",
      \"note\": \"$note\", \"regarding\": {\"kind\": \"Pod\", \"namespace\": \"default\", \"name\": \"absent\"}}"
}

expect "600 letters of two bytes" "$(record long 600)" 'message: Invalid value: \"\": can have at most 1024 characters'
expect "512 letters of two bytes" "$(record short 512)" '"uid"'
