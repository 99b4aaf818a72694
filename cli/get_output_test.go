package cli

import "testing"

// TestCellText: a cell is one line without control characters.
func TestCellText(t *testing.T) {
	for want, cell := range map[string]any{
		"<none>": nil, "2": int64(2), "true": true, "first...": "first\nsecond", "a b": "a\tb", " [31mred": "\x1b[31mred",
	} {
		if got := cellText(cell); got != want {
			t.Errorf("%v is printed as %q, want %q", cell, got, want)
		}
	}
}
