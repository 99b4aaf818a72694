package settings

import "testing"

func TestFind(t *testing.T) {
	const text = "A=1\n\nB=x=y\n no equals sign\nA=2\n"
	for name, want := range map[string]string{"A": "1", "B": "x=y", "C": ""} {
		if got := find(text, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestTheEnvironmentGoesFirst(t *testing.T) {
	t.Setenv("TESTPROVIDERS_SETTING", "set")
	if got := Get("TESTPROVIDERS_SETTING"); got != "set" {
		t.Errorf("it is %q", got)
	}
}
