package aggregate

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestIdentify(t *testing.T) {
	roster := mustRoster(t, clocktesting.NewFakePassiveClock(start), Member{Name: "east", FrontProxy: proxyOf(newCA(t, "ca"))})
	m := roster.members[0]
	everybody := []string{GroupMembers, GroupClusterPrefix + "east", user.AllAuthenticated}

	for _, c := range []struct {
		name   string
		header http.Header
		want   user.DefaultInfo
		err    string
	}{
		{"a service account", http.Header{
			"X-Remote-User": {"system:serviceaccount:ops:ctl"}, "X-Remote-Uid": {"u-1"},
			"X-Remote-Group":                      {"system:serviceaccounts", "", "system:authenticated"},
			"X-Remote-Extra-Example.com%2ftenant": {"a", "b"},
		}, user.DefaultInfo{
			Name: "east:system:serviceaccount:ops:ctl", UID: "u-1",
			Groups: append([]string{"east:system:serviceaccounts", "east:system:authenticated"}, everybody...),
			Extra:  map[string][]string{"example.com/tenant": {"a", "b"}},
		}, ""},
		{"the member's administrator has no special group", http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}},
			user.DefaultInfo{Name: "east:admin", Groups: append([]string{"east:system:masters"}, everybody...)}, ""},
		{"another cluster's name", http.Header{"X-Remote-User": {"west:bob"}, "X-Remote-Group": {"atoll:cluster:west", "west:ops"}},
			user.DefaultInfo{Name: "east:west:bob", Groups: append([]string{"east:atoll:cluster:west", "east:west:ops"}, everybody...)}, ""},
		{"anonymous", http.Header{"X-Remote-User": {"system:anonymous"}},
			user.DefaultInfo{Name: "east:system:anonymous", Groups: []string{user.AllUnauthenticated}}, ""},
		{"unauthenticated by group", http.Header{"X-Remote-User": {"x"}, "X-Remote-Group": {"system:unauthenticated"}},
			user.DefaultInfo{Name: "east:x", Groups: []string{"east:system:unauthenticated", user.AllUnauthenticated}}, ""},
		{"no user", http.Header{"X-Remote-Group": {"system:masters"}}, user.DefaultInfo{}, "has no user name"},
		{"an empty user", http.Header{"X-Remote-User": {""}}, user.DefaultInfo{}, "has no user name"},
		{"a blank user", http.Header{"X-Remote-User": {" \t"}}, user.DefaultInfo{}, "has no user name"},
		{"two users", http.Header{"X-Remote-User": {"alice", "bob"}}, user.DefaultInfo{}, "set 2 times"},
		{"one user twice", http.Header{"X-Remote-User": {"alice", "alice"}}, user.DefaultInfo{}, "set 2 times"},
		{"an empty user before another", http.Header{"X-Remote-User": {"", "bob"}}, user.DefaultInfo{}, "set 2 times"},
		{"two UIDs", http.Header{"X-Remote-User": {"a"}, "X-Remote-Uid": {"1", "2"}}, user.DefaultInfo{}, "set 2 times"},
		{"extra of no name", http.Header{"X-Remote-User": {"a"}, "X-Remote-Extra-": {"1"}}, user.DefaultInfo{}, "has no valid extra key"},
		{"extra wrongly escaped", http.Header{"X-Remote-User": {"a"}, "X-Remote-Extra-%zz": {"1"}}, user.DefaultInfo{}, "has no valid extra key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := m.identify(c.header)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v and %v, want %q", got.info, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.info.DefaultInfo); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Two header names for one value count as one: setting both is an error.
func TestIdentifyUnderTwoNames(t *testing.T) {
	proxy := proxyOf(newCA(t, "ca"))
	proxy.UsernameHeaders = []string{"x-remote-user", "X-Forwarded-User"}
	m := mustRoster(t, clocktesting.NewFakePassiveClock(start), Member{Name: "east", FrontProxy: proxy}).members[0]
	if who, err := m.identify(http.Header{"X-Forwarded-User": {"alice"}}); err != nil || who.info.Name != "east:alice" {
		t.Errorf("got %v, %v", who.info, err)
	}
	if _, err := m.identify(http.Header{"X-Forwarded-User": {"alice"}, "X-Remote-User": {"bob"}}); err == nil {
		t.Error("two users were accepted")
	}
}
func TestClusterOf(t *testing.T) {
	for _, test := range []struct {
		groups []string
		want   string
	}{
		{[]string{"east:system:masters", GroupMembers, GroupClusterPrefix + "east", "system:authenticated"}, "east"},
		{[]string{GroupClusterPrefix + "east"}, ""},
		{[]string{GroupMembers}, ""},
		{[]string{GroupMembers, "east:" + GroupClusterPrefix + "west"}, ""},
		{[]string{GroupMembers, GroupClusterPrefix + "east", GroupClusterPrefix + "west"}, ""},
		{[]string{GroupMembers, GroupClusterPrefix}, ""},
	} {
		if got, ok := ClusterOf(test.groups); got != test.want || ok != (test.want != "") {
			t.Errorf("%q: %q, %v", test.groups, got, ok)
		}
	}
}
