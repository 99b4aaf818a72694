// Package settings reads a provider's settings from the environment or from a file settings.env in
// the directory of its executable, because a host may start it with a clean environment. The file
// has lines of NAME=value; the environment takes precedence.
package settings

import (
	"os"
	"path/filepath"
	"strings"
)

// Get returns a setting, or "".
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
