package config

import "strings"

// nearest is the candidate with the smallest edit distance to s, if that is
// small enough to be a slip, else the one that s is the beginning of.
func nearest(s string, candidates []string) string {
	if len(s) > 100 {
		return ""
	}
	best, least := "", len(s)/3+2
	for _, c := range candidates {
		if d := distance(strings.ToLower(s), c); d < least {
			best, least = c, d
		}
	}
	if best != "" || len(s) < 3 {
		return best
	}
	for _, c := range candidates {
		if strings.HasPrefix(c, strings.ToLower(s)) {
			if best != "" {
				return ""
			}
			best = c
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j+1]+1, row[j]+1, diag+cost)
			diag, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// nearestKey finds the known key or table that an unknown path was meant to
// be: among its siblings first, then anywhere by its last name.
func nearestKey(p string) string {
	parent, last := split(p)
	var siblings []string
	seen := map[string]bool{}
	for _, k := range schema {
		rest, ok := strings.CutPrefix(k.Path, parent)
		if parent != "" {
			rest, ok = strings.CutPrefix(k.Path, parent+".")
		}
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(rest, ".")
		if !seen[name] {
			seen[name] = true
			siblings = append(siblings, name)
		}
	}
	if n := nearest(last, siblings); n != "" {
		if parent == "" {
			return n
		}
		return parent + "." + n
	}
	for _, k := range schema {
		if _, name := split(k.Path); name == last {
			return k.Path
		}
	}
	var all []string
	for _, k := range schema {
		all = append(all, k.Path)
	}
	return nearest(p, all)
}

func split(p string) (parent, last string) {
	if i := strings.LastIndexByte(p, '.'); i >= 0 {
		return p[:i], p[i+1:]
	}
	return "", p
}
