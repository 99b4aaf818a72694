package cli

import (
	"strings"
	"testing"
)

func TestNetworks(t *testing.T) {
	var n networks
	for _, text := range []string{"10.1.2.3/8, fd00::/8", "127.0.0.1/32"} {
		if err := n.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := n.String(), "10.0.0.0/8,fd00::/8,127.0.0.1/32"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := n.Set("10.0.0.1"); err == nil || !strings.Contains(err.Error(), "such as 10.0.0.0/8") {
		t.Errorf("10.0.0.1: %v", err)
	}
}
