// Package settings tells a provider what its process was told from outside: in its
// environment or, because a host may give it a clean one, in a file settings.env beside
// its executable. The file has lines of NAME=value; the environment goes first.
package settings

import (
	"os"
	"path/filepath"
	"strings"
)

// Get looks a setting up. It is "" if there is none.
func Get(name string) string {
	if value, found := os.LookupEnv(name); found {
		return value
	}
	executable, err := os.Executable()
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(executable), "settings.env"))
	if err != nil {
		return ""
	}
	return find(string(text), name)
}

func find(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && key == name {
			return value
		}
	}
	return ""
}
