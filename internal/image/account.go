package image

import (
	"fmt"
	"slices"
	"strings"
)

// The unprivileged user of every guest.
const (
	sandboxUser = "sandbox"
	sandboxID   = 1000
)

// account edits one of the account files: the user sandbox is added, with no
// password that could match, and joins the recipe's groups; root's password is
// disabled too.
func (c *composer) account(name string, content []byte) []byte {
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	groups := c.recipe.Groups
	switch name {
	case "etc/passwd":
		lines = append(lines, fmt.Sprintf("%s:x:%d:%d::/home/%s:/bin/bash", sandboxUser, sandboxID, sandboxID, sandboxUser))
	case "etc/shadow":
		for i, l := range lines {
			if f := strings.Split(l, ":"); f[0] == "root" && len(f) > 1 {
				f[1] = "*"
				lines[i] = strings.Join(f, ":")
			}
		}
		lines = append(lines, sandboxUser+":*:20000:0:99999:7:::")
	case "etc/group", "etc/gshadow":
		for i, l := range lines {
			f := strings.Split(l, ":")
			if len(f) == 4 && slices.Contains(groups, f[0]) {
				f[3] = strings.Trim(f[3]+","+sandboxUser, ",")
				lines[i] = strings.Join(f, ":")
			}
		}
		if name == "etc/group" {
			lines = append(lines, fmt.Sprintf("%s:x:%d:", sandboxUser, sandboxID))
		} else {
			lines = append(lines, sandboxUser+":!::")
		}
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// parseStatus lists the packages that dpkg's status file calls installed.
func parseStatus(status []byte) []Package {
	var all []Package
	for _, paragraph := range strings.Split(string(status), "\n\n") {
		var p Package
		installed := false
		for _, l := range strings.Split(paragraph, "\n") {
			key, value, _ := strings.Cut(l, ": ")
			switch key {
			case "Package":
				p.Name = value
			case "Version":
				p.Version = value
			case "Status":
				installed = strings.HasSuffix(value, " installed")
			}
		}
		if installed && p.Name != "" {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return all
}
