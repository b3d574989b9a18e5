"""The results of a job, by path."""

MODEL = b"0123456789" * 10
RESULTS = {
    "model.keras": MODEL,
    "saved_model/saved_model.pb": b"pb",
    "summary.json": b"{}",
    "logs/tensorboard/train/events.out.tfevents.1": b"events",
    "logs/steps.jsonl": b"steps",
    "checkpoints/step-9-a/index.json": b"9",
    "checkpoints/step-10-a/index.json": b"10",
    "checkpoints/step-11-a/part-00000.bin": b"11",
    "checkpoints/step-12-a/damaged-index.json": b"12",
    "checkpoints/owner.json": b"owner",
    "checkpoints/heartbeat.json": b"heartbeat",
}
