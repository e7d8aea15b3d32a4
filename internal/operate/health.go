package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
)

// Reported are the findings of a store's report.
func Reported(what string, r dedupstore.Report) []health.Finding {
	var found health.Report
	for _, w := range r.Warnings {
		loses := slices.Contains(r.Losses, w)
		found.Judge(what, health.LosesIf(loses, w), health.UnwiseIf(!loses, w))
	}
	return found.Found
}

func loses(what, finding string) []health.Finding {
	return []health.Finding{{Severity: health.Loses, Subject: what, Finding: finding}}
}

// Unusable makes a finding of an error that says why programs refuse to work with a server; another error stays one.
func Unusable(what string, err error) ([]health.Finding, error) {
	refusal, ok := errors.AsType[*dedupstore.SetupError](err)
	if !ok {
		return nil, err
	}
	text := refusal.Problem
	if refusal.Err != nil {
		text += ": " + strings.Join(strings.Fields(refusal.Err.Error()), " ")
	}
	return loses(what+", "+refusal.Subject, text), nil
}

// CheckStore looks at the server of a store, if the store can.
func CheckStore(ctx context.Context, what string, store dedupstore.Store) (dedupstore.Report, []health.Finding, error) {
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
func CheckOutbox(ctx context.Context, what string, box any) ([]health.Finding, error) {
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
		return loses(what, "it has no table: programs refuse to write; run oncemill migrate"), nil
	case plan.Found < plan.Wanted:
		return loses(what, fmt.Sprintf("its schema has version %d, want %d: programs refuse to write; run oncemill migrate",
			plan.Found, plan.Wanted)), nil
	}
	return nil, nil
}
