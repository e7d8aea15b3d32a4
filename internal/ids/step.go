package ids

import "strings"

// StepMark is between the names of a handler and of its step, in the handler's name of the step's record. So the
// records of steps have the message's ID, and stores remember which steps a group has.
const StepMark = "/step="

// IsStep reports whether a step can have a name.
func IsStep(name string) bool { return name != "" && !strings.Contains(name, StepMark) }

// StepHandler returns the name under which the records of a handler's step are kept.
func StepHandler(handler, step string) string { return handler + StepMark + step }

// StepOf returns the handler and the step that the name of a handler stands for, if it is a step's.
func StepOf(name string) (handler, step string, is bool) {
	at := strings.LastIndex(name, StepMark)
	if at < 0 {
		return name, "", false
	}
	return name[:at], name[at+len(StepMark):], true
}

// IsOfStep reports whether the name of a handler is that of a step.
func IsOfStep(handler string) bool { return strings.Contains(handler, StepMark) }
