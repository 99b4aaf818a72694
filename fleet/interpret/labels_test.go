package interpret

import "testing"

// TestIgnoredLabel: a label with an unknown value has no effect, and its author gets a warning.
func TestIgnoredLabel(t *testing.T) {
	for label, want := range map[[2]string]string{
		{"fleet.atoll.dev/home", "Above"}:                  "",
		{"fleet.atoll.dev/home", "Members"}:                "",
		{"fleet.atoll.dev/home", "above"}:                  `metadata.labels[fleet.atoll.dev/home]: "above" has no effect: use Above or Members`,
		{"fleet.atoll.dev/home", ""}:                       `metadata.labels[fleet.atoll.dev/home]: "" has no effect: use Above or Members`,
		{"fleet.atoll.dev/configuration", "WhereNeeded"}:   "",
		{"fleet.atoll.dev/configuration", "WithNamespace"}: "",
		{"fleet.atoll.dev/configuration", "Everywhere"}:    `metadata.labels[fleet.atoll.dev/configuration]: "Everywhere" has no effect: use WithNamespace or WhereNeeded`,
		{"fleet.atoll.dev/group", "db"}:                    "",
	} {
		if got := IgnoredLabel(map[string]string{label[0]: label[1]}); got != want {
			t.Errorf("%s: %q", label, got)
		}
	}
}
