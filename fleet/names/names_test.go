package names

import (
	"fmt"
	"testing"
)

func TestList(t *testing.T) {
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("c%02d", i))
	}
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{nil, "none"},
		{[]string{"west", "east", "west"}, "east, west"},
		{many, "c00, c01, c02, c03, c04, c05, c06, c07, c08, c09 and 2 more"},
	} {
		if got := List(tt.names); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.names, got, tt.want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	for _, tt := range []struct {
		name  string
		among []string
		want  string
	}{
		{"eats", []string{"west", "east"}, " (did you mean east?)"},
		{"shop.exmple.org", []string{"books.example.org", "shop.example.org"}, " (did you mean shop.example.org?)"},
		{"a", []string{"b", "a1"}, " (did you mean a1?)"},
		{"north", []string{"east", "west"}, ""},
		{"east", nil, ""},
	} {
		if got := DidYouMean(tt.name, tt.among); got != tt.want {
			t.Errorf("%s among %v: %q, want %q", tt.name, tt.among, got, tt.want)
		}
	}
}

func TestNoSuchCluster(t *testing.T) {
	for _, tt := range []struct {
		joined []string
		want   string
	}{
		{nil, "no cluster has joined: run `atoll join eats --kubeconfig FILE` first"},
		{[]string{"west", "east"}, `cluster "eats" not found (did you mean east?): the clusters are east, west`},
	} {
		if got := NoSuchCluster("eats", tt.joined).Error(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.joined, got, tt.want)
		}
	}
}
