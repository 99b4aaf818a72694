package change

import "testing"

func TestSummary(t *testing.T) {
	c := Counts{Create: 2, Replace: 1, Update: 1}
	if got := c.Summary(); got != "Plan: 3 to add, 1 to change, 1 to destroy." {
		t.Error(got)
	}
	c = Counts{Import: 1, Forget: 2, Deferred: 3}
	if got := c.Summary(); got != "Plan: 1 to import, 0 to add, 0 to change, 0 to destroy, 2 to forget. Deferred: 3." {
		t.Error(got)
	}
}
