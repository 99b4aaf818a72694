package merged

import "testing"

func TestContinuation(t *testing.T) {
	want := continuation{1 << 60, "uid", "inner"}
	if got, err := parseContinuation(want.String()); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, token := range []string{"%", "e30x", "AAAA"} {
		if got, err := parseContinuation(token); err == nil {
			t.Errorf("%s: %+v", token, got)
		}
	}
}
