package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
)

// Severities of findings.
const (
	Loses  = "error"   // it can lose messages or make effects twice, or programs refuse to work with it
	Unwise = "warning" // it works, and should be changed
)

// A Finding is what is wrong with a server.
type Finding struct {
	Severity string `json:"severity"`
	Subject  string `json:"subject"`
	Finding  string `json:"finding"` // what is set, what that means, and what to set
}

// Found is a finding.
func Found(severity, subject, finding string) Finding { return Finding{severity, subject, finding} }

// Reported are the findings of a store's report.
func Reported(what string, r dedupstore.Report) (found []Finding) {
	for _, w := range r.Warnings {
		severity := Unwise
		if slices.Contains(r.Losses, w) {
			severity = Loses
		}
		found = append(found, Finding{severity, what, w})
	}
	return found
}

// Unusable makes a finding of an error that says why programs refuse to work with a server; another error stays one.
func Unusable(what string, err error) ([]Finding, error) {
	refusal, ok := errors.AsType[*dedupstore.SetupError](err)
	if !ok {
		return nil, err
	}
	text := refusal.Problem
	if refusal.Err != nil {
		text += ": " + strings.Join(strings.Fields(refusal.Err.Error()), " ")
	}
	return []Finding{{Loses, what + ", " + refusal.Subject, text}}, nil
}

// CheckStore looks at the server of a store, if the store can.
func CheckStore(ctx context.Context, what string, store dedupstore.Store) (dedupstore.Report, []Finding, error) {
	checker, ok := store.(dedupstore.Checker)
	if !ok {
		return dedupstore.Report{}, nil, nil
	}
	report, err := checker.Check(ctx)
	if err != nil {
		found, err := Unusable(what, err)
		return report, found, err
	}
	return report, Reported(what, report), nil
}

// CheckOutbox looks whether the tables of an outbox are those of this version, if it has some.
func CheckOutbox(ctx context.Context, what string, box any) ([]Finding, error) {
	planner, ok := box.(interface {
		Plan(ctx context.Context) (dedupstore.Migration, error)
	})
	if !ok {
		return nil, nil
	}
	plan, err := planner.Plan(ctx)
	switch {
	case err != nil:
		return Unusable(what, err)
	case plan.Found == 0 && plan.Wanted > 0:
		return []Finding{{Loses, what, "it has no table: programs refuse to write; run oncemill migrate"}}, nil
	case plan.Found < plan.Wanted:
		return []Finding{{Loses, what, fmt.Sprintf("its schema has version %d, want %d: programs refuse to write; run "+
			"oncemill migrate", plan.Found, plan.Wanted)}}, nil
	}
	return nil, nil
}
