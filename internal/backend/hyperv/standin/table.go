package standin

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
)

//go:embed cmdlets.txt
var cmdletsText string

type parameterSet struct {
	name       string
	isDefault  bool
	parameters []parameter
}

type parameter struct {
	name       string
	kind       string // "" for a switch; with [] for arrays
	mandatory  bool
	positional bool
	byValue    bool
	byProperty bool
	aliases    []string
}

func (p parameter) is(name string) bool {
	if strings.EqualFold(p.name, name) {
		return true
	}
	for _, a := range p.aliases {
		if strings.EqualFold(a, name) {
			return true
		}
	}
	return false
}

func (s parameterSet) find(name string) (parameter, bool) {
	for _, p := range s.parameters {
		if p.is(name) {
			return p, true
		}
	}
	return parameter{}, false
}

type cmdletInfo struct {
	module string
	name   string
	sets   []parameterSet
}

// cmdletTable has the cmdlets by lower-case name.
var cmdletTable = sync.OnceValue(func() map[string]*cmdletInfo {
	table, err := readTable(cmdletsText)
	if err != nil {
		panic(err) // the text is part of the program
	}
	return table
})

func readTable(text string) (map[string]*cmdletInfo, error) {
	table := map[string]*cmdletInfo{}
	var cur *cmdletInfo
	for _, line := range strings.Split(text, "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] != ' ':
			module, name, ok := strings.Cut(line, `\`)
			if !ok {
				return nil, fmt.Errorf("%q is no module and cmdlet", line)
			}
			cur = &cmdletInfo{module: module, name: name}
			table[strings.ToLower(name)] = cur
		default:
			name, list, ok := strings.Cut(strings.TrimSpace(line), ": ")
			if !ok || cur == nil {
				return nil, fmt.Errorf("%q is no parameter set", line)
			}
			set := parameterSet{name: strings.TrimSuffix(name, "*"), isDefault: strings.HasSuffix(name, "*")}
			for _, item := range strings.Split(list, "; ") {
				set.parameters = append(set.parameters, readParameter(item))
			}
			cur.sets = append(cur.sets, set)
		}
	}
	return table, nil
}

func readParameter(item string) parameter {
	item, aliases, _ := strings.Cut(item, "=")
	item, flags, _ := strings.Cut(item, " ")
	name, kind, _ := strings.Cut(item, ":")
	p := parameter{
		name: name, kind: kind, mandatory: strings.Contains(flags, "!"), positional: strings.Contains(flags, "@"),
		byValue: strings.Contains(flags, "<"), byProperty: strings.Contains(flags, "."),
	}
	if aliases != "" {
		p.aliases = strings.Split(aliases, ",")
	}
	return p
}

// lookupCmdlet finds what a name in a script means. A module's name in front
// must be the cmdlet's.
func lookupCmdlet(name string) (*cmdletInfo, bool) {
	module, bare, qualified := strings.Cut(name, `\`)
	if !qualified {
		bare = name
	}
	info, ok := cmdletTable()[strings.ToLower(bare)]
	if !ok || qualified && !strings.EqualFold(module, info.module) {
		return nil, false
	}
	return info, true
}

// Knows reports whether a cmdlet, as a script names it, is in the table.
func Knows(name string) bool {
	_, ok := lookupCmdlet(name)
	return ok
}
