package hyperv

import (
	"embed"
	"path"
	"strings"
)

//go:embed scripts/*.ps1
var scriptFiles embed.FS

// script is the text of a script, without the comments, which would travel with
// every request.
func script(name string) string {
	b, err := scriptFiles.ReadFile(path.Join("scripts", name+".ps1"))
	if err != nil {
		panic(err) // the names are constants, the files part of the program
	}
	var kept []string
	for _, line := range strings.Split(strings.ReplaceAll(string(b), "\r\n", "\n"), "\n") {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
