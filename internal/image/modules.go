package image

import (
	"bufio"
	"bytes"
	"fmt"
	"path"
	"strings"
)

// moduleIndex knows the modules of one kernel, from the text files that depmod
// wrote.
type moduleIndex struct {
	deps    map[string][]string // module name to the paths it needs, itself last
	builtin map[string]bool
}

// parseModules reads modules.dep and modules.builtin. Paths are relative to
// /usr/lib/modules/RELEASE.
func parseModules(dep, builtin []byte) moduleIndex {
	x := moduleIndex{deps: map[string][]string{}, builtin: map[string]bool{}}
	for s := bufio.NewScanner(bytes.NewReader(builtin)); s.Scan(); {
		x.builtin[moduleName(s.Text())] = true
	}
	s := bufio.NewScanner(bytes.NewReader(dep))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		file, needs, ok := strings.Cut(s.Text(), ":")
		if !ok {
			continue
		}
		// depmod lists the direct need first and the deepest last.
		fields := strings.Fields(needs)
		order := make([]string, 0, len(fields)+1)
		for i := len(fields) - 1; i >= 0; i-- {
			order = append(order, fields[i])
		}
		x.deps[moduleName(file)] = append(order, file)
	}
	return x
}

// order returns the files that must be loaded, in order, so that all the named
// modules are there. A name that the kernel knows neither as a module nor as
// built in is an error if required, and skipped otherwise.
func (x moduleIndex) order(names []string, required bool) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	for _, name := range names {
		name = moduleName(name)
		need, ok := x.deps[name]
		if !ok && !x.builtin[name] && required {
			return nil, fmt.Errorf("the kernel has no module %q", name)
		}
		for _, f := range need {
			if !seen[f] {
				seen[f] = true
				files = append(files, f)
			}
		}
	}
	return files, nil
}

// moduleName is the name that the kernel uses for a module's file.
func moduleName(file string) string {
	base, _, _ := strings.Cut(path.Base(file), ".")
	return strings.ReplaceAll(base, "-", "_")
}
