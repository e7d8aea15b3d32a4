package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A language has statements that a package reads from files of their own, or has in its constants.
type language struct {
	aside      *regexp.Regexp // comments and strings
	begin, end *regexp.Regexp // of a condition
	not        string
	operator   *regexp.Regexp
	opposite   map[string]string
	assigns    string // an operator that compares in conditions only
	reads      []read // where all statements go through
}

// A read is the code of a package that reads statements, and what lets a mutant in.
type read struct{ file, code, instead string }

var lua = &language{
	aside:    regexp.MustCompile(`--[^\n]*|'[^'\n]*'`),
	begin:    regexp.MustCompile(`\b(?:if|elseif|while)\b`),
	end:      regexp.MustCompile(`\b(?:then|do)\b`),
	not:      "not",
	operator: regexp.MustCompile(`<=|>=|==|~=|<|>|\band\b|\bor\b`),
	opposite: map[string]string{
		"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "==", "and": "or", "or": "and",
	},
	reads: []read{{"scripts.go", "text += string(b)", "text += mutantSource(string(b))"}},
}

var postgres = &language{
	aside: regexp.MustCompile(`--[^\n]*|'[^'\n]*'`),
	begin: regexp.MustCompile(`\b(?:WHERE|WHEN)\b`),
	end:   regexp.MustCompile(`\b(?:THEN|FOR|ORDER|RETURNING|ON|OFFSET|LIMIT)\b`),
	not:   "NOT",
	operator: regexp.MustCompile(`<=|>=|<>|<|>|=|\bBETWEEN\b[^\n]*?\bAND\b|\bAND\b|\bOR\b|\bIS (?:NOT )?NULL\b|` +
		`\bIS (?:NOT )?DISTINCT FROM\b|\bNOT\b|\bIN \(|\bgreatest\b|\bSKIP LOCKED\b`),
	opposite: map[string]string{
		"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "AND": "OR", "OR": "AND",
		"IS NULL": "IS NOT NULL", "IS NOT NULL": "IS NULL", "IS DISTINCT FROM": "IS NOT DISTINCT FROM",
		"IS NOT DISTINCT FROM": "IS DISTINCT FROM", "NOT": "",
		"IN (": "NOT IN (", "greatest": "least", "SKIP LOCKED": "",
	},
	assigns: "=",
	reads: []read{
		{"statements.go", "in := names.Replace\n", "in := func(s string) string { return names.Replace(mutantSource(s)) }\n"},
		{"statements.go", "strings.ReplaceAll(livesUntil,", "strings.ReplaceAll(mutantSource(livesUntil),"},
		{"inbox.go", "{{query: ready}}", "{{query: mutantSource(ready)}}"},
	},
}

// outside is what is not in a raw string of Go, and so no statement.
var outside = regexp.MustCompile("(?:^|`)[^`]*(?:`|$)")

// differs is an operator that is not negated by its opposite.
var differs = regexp.MustCompile(`^(?i:[<>]=?|and|or)$`)

//go:embed statements.go.txt
var statementHelper string

// mutate returns the mutants of statements: each condition negated, each comparison shifted or turned round, each `and`
// an `or`. The statements are changed as they are read, so the tests compile once.
func (l *language) mutate(root, dir string, files []string) ([]*mutant, map[string]string, error) {
	var mutants []*mutant
	texts := make([]string, len(files))
	for i, name := range files {
		source, err := os.ReadFile(filepath.Join(root, dir, name))
		if err != nil {
			return nil, nil, err
		}
		texts[i] = string(source)
	}
	all, edits := strings.Join(texts, "\n"), map[string]bool{}
	for i, text := range texts {
		code := text
		if strings.HasSuffix(files[i], ".go") {
			code = outside.ReplaceAllStringFunc(code, blank)
		}
		code = l.aside.ReplaceAllStringFunc(code, blank)
		add := func(what string, from, to int, instead string) {
			line := strings.Count(text[:from], "\n")
			before, after := unique(all, text, from, to)
			edit := []string{
				"ONCEMILL_MUTANT_OLD=" + before + text[from:to] + after, "ONCEMILL_MUTANT_NEW=" + before + instead + after,
			}
			if edits[strings.Join(edit, "")] {
				return // of the same words in another constant, which it changes, too
			}
			edits[strings.Join(edit, "")] = true
			mutants = append(mutants, &mutant{
				id: len(mutants) + 1, file: dir + "/" + files[i], number: line + 1,
				line: strings.TrimSpace(strings.Split(text, "\n")[line]), what: what, env: edit,
			})
		}
		compares, alone := map[int]bool{}, map[int]bool{} // operators in conditions, and those that are all of one
		for _, at := range l.conditions(code) {
			condition := strings.TrimSpace(text[at[0]:at[1]])
			if strings.HasPrefix(condition, "CASE ") {
				continue // its own are next
			}
			add("negate `"+strings.Join(strings.Fields(condition), " ")+"`", at[0], at[1], " "+l.not+" ("+condition+") ")
			within := l.operator.FindAllStringIndex(code[at[0]:at[1]], -1)
			for _, operator := range within {
				compares[at[0]+operator[0]] = true
				alone[at[0]+operator[0]] = len(within) == 1
			}
		}
		for _, at := range l.operator.FindAllStringIndex(code, -1) {
			operator := code[at[0]:at[1]]
			opposite, known := l.opposite[operator]
			switch {
			case operator == l.assigns && !compares[at[0]]:
				continue
			case alone[at[0]] && !differs.MatchString(operator):
				continue // it is negated already
			case !known:
				opposite = l.not + " " + operator
			}
			add(fmt.Sprintf("%s is %s before `%s`", operator, opposite, restOf(text[at[1]:])), at[0], at[1], opposite)
		}
	}
	changed := map[string]string{
		filepath.Join(root, dir, "zz_mutants.go"): strings.Replace(statementHelper, "PACKAGE", filepath.Base(dir), 1),
	}
	for _, r := range l.reads {
		path := filepath.Join(root, dir, r.file)
		if changed[path] == "" {
			source, err := os.ReadFile(path)
			if err != nil {
				return nil, nil, err
			}
			changed[path] = string(source)
		}
		if !strings.Contains(changed[path], r.code) {
			return nil, nil, fmt.Errorf("%s has no %q any more", path, r.code)
		}
		changed[path] = strings.Replace(changed[path], r.code, r.instead, 1)
	}
	return number(mutants), changed, nil
}

// conditions are where conditions are: each ends before its word, or with the parentheses in which it is.
func (l *language) conditions(code string) (all [][2]int) {
	ends := map[int]bool{}
	for _, end := range l.end.FindAllStringIndex(code, -1) {
		ends[end[0]] = true
	}
	for _, begin := range l.begin.FindAllStringIndex(code, -1) {
		at := begin[1]
		for depth := 0; at < len(code) && (depth > 0 || !ends[at] && code[at] != ')' && code[at] != '`'); at++ {
			switch code[at] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		all = append(all, [2]int{begin[1], at})
	}
	return all
}

// unique returns what is around a part of a text, in the same raw string of Go, that tells it from all others.
func unique(all, text string, from, to int) (before, after string) {
	first, last := strings.LastIndexByte(text[:from], '`')+1, len(text)
	if n := strings.IndexByte(text[to:], '`'); n >= 0 {
		last = to + n
	}
	for n := 0; ; n++ {
		start, end := max(first, from-n), min(last, to+n)
		if strings.Count(all, text[start:end]) == 1 || start == first && end == last {
			return text[start:from], text[to:end]
		}
	}
}

// blank leaves lines and quotes of raw strings as they are.
func blank(s string) string {
	b := bytes.Repeat([]byte(" "), len(s))
	for i := range b {
		if s[i] == '\n' || s[i] == '`' {
			b[i] = s[i]
		}
	}
	return string(b)
}

func restOf(text string) string {
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
