package webhook

// EventError says why a proven request is of no use.
type EventError = eventError
