package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed lua.go.txt
var luaHelper string

// luaRead is the line of redisstore that reads a script, and luaReads what reads one with a mutant.
const luaRead, luaReads = "text += string(b)", "text += mutantSource(part, b)"

var (
	luaAside     = regexp.MustCompile(`--[^\n]*|'[^'\n]*'`) // comments and strings
	luaCondition = regexp.MustCompile(`(?s)\b(?:if|elseif|while)\b(.*?)\b(?:then|do)\b`)
	luaOperator  = regexp.MustCompile(`<=|>=|==|~=|<|>|\band\b|\bor\b`)
	luaOpposite  = map[string]string{
		"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==", "and": "or", "or": "and",
	}
)

// mutateLua returns the mutants of the scripts of a package: each condition negated, each comparison shifted or
// turned round, each `and` an `or`. The scripts are changed as they are read, so the tests compile once.
func mutateLua(root, dir string, files []string) ([]*mutant, map[string]string, error) {
	var mutants []*mutant
	for _, name := range files {
		source, err := os.ReadFile(filepath.Join(root, dir, name))
		if err != nil {
			return nil, nil, err
		}
		text := string(source)
		code := luaAside.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) })
		add := func(what string, from, to int, instead string) {
			line := strings.Count(text[:from], "\n")
			part := strings.TrimSuffix(name, ".lua")
			mutants = append(mutants, &mutant{
				id: len(mutants) + 1, file: dir + "/" + name, number: line + 1,
				line: strings.TrimSpace(strings.Split(text, "\n")[line]), what: what,
				env: []string{fmt.Sprintf("ONCEMILL_MUTANT_EDIT=%s:%d:%d:%s", part, from, to, instead)},
			})
		}
		alone := map[int]bool{} // operators that are all of a condition
		for _, at := range luaCondition.FindAllStringSubmatchIndex(code, -1) {
			from, to := at[2], at[3]
			condition := strings.TrimSpace(text[from:to])
			add("negate `"+strings.Join(strings.Fields(condition), " ")+"`", from, to, " not ("+condition+") ")
			if within := luaOperator.FindAllStringIndex(code[from:to], -1); len(within) == 1 {
				alone[from+within[0][0]] = true
			}
		}
		for _, at := range luaOperator.FindAllStringIndex(code, -1) {
			operator := code[at[0]:at[1]]
			if alone[at[0]] && strings.Contains("== ~=", operator) {
				continue // it is negated already
			}
			opposite := luaOpposite[operator]
			add(fmt.Sprintf("%s is %s before `%s`", operator, opposite, luaRest(text[at[1]:])), at[0], at[1], opposite)
		}
	}
	reader := filepath.Join(root, dir, "scripts.go")
	source, err := os.ReadFile(reader)
	if err != nil {
		return nil, nil, err
	}
	if !strings.Contains(string(source), luaRead) {
		return nil, nil, fmt.Errorf("%s has no %q any more", reader, luaRead)
	}
	return number(mutants), map[string]string{
		reader: strings.Replace(string(source), luaRead, luaReads, 1),
		filepath.Join(root, dir, "zz_mutants.go"): luaHelper,
	}, nil
}

func luaRest(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line[:min(len(line), 40)])
}

// number tells mutants apart that would have the same key.
func number(mutants []*mutant) []*mutant {
	seen := map[string]int{}
	for _, m := range mutants {
		key := m.key()
		if seen[key]++; seen[key] > 1 {
			m.what += fmt.Sprintf(" #%d", seen[key])
		}
	}
	return mutants
}
