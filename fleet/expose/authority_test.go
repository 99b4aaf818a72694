package expose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestFrontProxy(t *testing.T) {
	tests := []struct {
		name   string
		change map[string]string
		want   string // part of the error
	}{
		{"whole", nil, ""},
		{"no CA", map[string]string{"requestheader-client-ca-file": ""}, "no front-proxy authority"},
		{"an invalid CA", map[string]string{"requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "no front-proxy authority"},
		{"invalid names do not allow any name", map[string]string{"requestheader-allowed-names": "front-proxy-client"}, "requestheader-allowed-names"},
		{"no header for the user", map[string]string{"requestheader-username-headers": "[]"}, "does not publish a username header"},
	}
	for _, tt := range tests {
		published := authority(t)
		for key, value := range tt.change {
			if err := unstructured.SetNestedField(published.Object, value, "data", key); err != nil {
				t.Fatal(err)
			}
		}
		got, err := frontProxy(published)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one about %q", tt.name, err, tt.want)
		}
		if err == nil && (!slices.Equal(got.AllowedNames, []string{"front-proxy-client"}) || !slices.Equal(got.UsernameHeaders, []string{"X-Remote-User"}) ||
			!slices.Equal(got.GroupHeaders, []string{"X-Remote-Group"}) || !slices.Equal(got.ExtraHeaderPrefixes, []string{"X-Remote-Extra-"})) {
			t.Errorf("%s: read %+v", tt.name, got)
		}
	}
}

func TestSharesAuthority(t *testing.T) {
	read := func() *v1alpha1.FrontProxy {
		a, err := frontProxy(authority(t))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	east, west := read(), read()
	both := &v1alpha1.FrontProxy{CABundle: append(slices.Clone(west.CABundle), east.CABundle...)}
	self := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east", CreationTimestamp: metav1.Unix(100, 0)}}
	recorded := self.DeepCopy()
	recorded.Status.FrontProxy = east
	older := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "west", CreationTimestamp: metav1.Unix(50, 0)}, Status: v1alpha1.ClusterStatus{FrontProxy: east}}
	younger := older.DeepCopy()
	younger.CreationTimestamp = metav1.Unix(200, 0)
	member := func(name string, a *v1alpha1.FrontProxy) *v1alpha1.Cluster {
		return &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ClusterStatus{FrontProxy: a}}
	}
	tests := []struct {
		name   string
		self   *v1alpha1.Cluster
		others []*v1alpha1.Cluster
		want   string
	}{
		{"alone", self, []*v1alpha1.Cluster{member("east", east), member("north", nil)}, ""},
		{"its own", self, []*v1alpha1.Cluster{member("west", west)}, ""},
		{"the same", self, []*v1alpha1.Cluster{member("west", east)}, "west"},
		{"one of two", self, []*v1alpha1.Cluster{member("west", both)}, "west"},
		{"not recorded, although older", self, []*v1alpha1.Cluster{younger}, "west"},
		{"recorded for both, and older", recorded, []*v1alpha1.Cluster{younger}, ""},
		{"recorded for both, and younger", recorded, []*v1alpha1.Cluster{older}, "west"},
	}
	for _, tt := range tests {
		if got, shares := sharesAuthority(tt.self, east, tt.others); got != tt.want || shares != (tt.want != "") {
			t.Errorf("%s: %q %v, want %q", tt.name, got, shares, tt.want)
		}
	}
}

func TestLeaseObservations(t *testing.T) {
	s := leaseObservations{}
	start := time.Unix(0, 0)
	renewed := func(l *unstructured.Unstructured, at string) *unstructured.Unstructured {
		// The server's clock is wrong by years: only a change counts.
		_ = unstructured.SetNestedField(l.Object, at, "spec", "renewTime")
		return l
	}
	one, two := lease("one", "10.0.0.1:7443"), lease("two", "10.0.0.2:7443")
	back := renewed(two.DeepCopy(), "1999-01-01T00:00:00Z")
	another := back.DeepCopy()
	another.SetUID(types.UID("another"))
	steps := []struct {
		name   string
		after  time.Duration
		leases []*unstructured.Unstructured
		want   string
	}{
		{"both are new", 0, []*unstructured.Unstructured{two, one}, "10.0.0.1:7443 10.0.0.2:7443"},
		{"one renews", 7 * time.Second, []*unstructured.Unstructured{renewed(one.DeepCopy(), "1999-01-01T00:00:00Z"), two}, "10.0.0.1:7443 10.0.0.2:7443"},
		{"neither renews", 16 * time.Second, []*unstructured.Unstructured{renewed(one.DeepCopy(), "1999-01-01T00:00:00Z"), two}, "10.0.0.1:7443 10.0.0.2:7443"},
		{"neither renews for a day", 24 * time.Hour, []*unstructured.Unstructured{renewed(one.DeepCopy(), "1999-01-01T00:00:00Z"), two}, "10.0.0.1:7443 10.0.0.2:7443"},
		{"one renews again, and the other does not", 25 * time.Hour, []*unstructured.Unstructured{renewed(one.DeepCopy(), "1999-01-02T00:00:00Z"), two}, "10.0.0.1:7443"},
		{"it comes back alone", 26 * time.Hour, []*unstructured.Unstructured{back}, "10.0.0.2:7443"},
		{"it is recreated", 27 * time.Hour, []*unstructured.Unstructured{another}, "10.0.0.2:7443"},
		{"no server", 28 * time.Hour, nil, ""},
	}
	for _, step := range steps {
		var names []string
		for _, a := range s.live(step.leases, start.Add(step.after)) {
			names = append(names, a.address.String())
		}
		if got := strings.Join(names, " "); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	if len(s) != 0 {
		t.Errorf("still records %v, which is gone", s)
	}
}

func TestAddressesFor(t *testing.T) {
	at := func(address, cluster string) server { return server{netip.MustParseAddrPort(address), cluster, true} }
	all := []server{at("10.0.0.1:1", "east"), at("10.0.0.2:1", "west"), at("10.0.0.3:1", ""), at("10.0.0.4:1", "west")}
	for cluster, want := range map[string]string{
		"east":  "[10.0.0.1:1]",
		"west":  "[10.0.0.2:1 10.0.0.4:1]",
		"north": "[10.0.0.1:1 10.0.0.2:1 10.0.0.3:1 10.0.0.4:1]",
	} {
		if got := fmt.Sprint(addressesFor(all, cluster, nil)); got != want {
			t.Errorf("%s calls %s, want %s", cluster, got, want)
		}
	}
}

// TestNewLeaderDisturbsNobody: a new leader sees the Leases of all servers for the first time, also
// of those that ended long ago. A member's addresses stay, and those of servers that are seen to be
// alive are added.
func TestNewLeaderDisturbsNobody(t *testing.T) {
	unseen := func(address, cluster string) server { return server{netip.MustParseAddrPort(address), cluster, false} }
	alive := func(address, cluster string) server { return server{netip.MustParseAddrPort(address), cluster, true} }
	for _, tc := range []struct {
		name    string
		servers []server
		present string
		want    string
	}{
		{"a restarted server's former Lease", []server{unseen("10.0.0.1:1", "west"), unseen("10.0.0.1:2", "west")}, "10.0.0.1:2", "[10.0.0.1:2]"},
		{"the dead leader's Lease", []server{unseen("10.0.0.1:1", "east"), unseen("10.0.0.2:1", "west")}, "10.0.0.2:1", "[10.0.0.2:1]"},
		{"its own server comes back", []server{alive("10.0.0.1:1", "east"), alive("10.0.0.2:1", "west")}, "10.0.0.1:1", "[10.0.0.2:1]"},
		{"its own server may be back", []server{alive("10.0.0.1:1", "east"), unseen("10.0.0.2:1", "west")}, "10.0.0.1:1", "[10.0.0.1:1]"},
		{"a new member", []server{unseen("10.0.0.1:1", "east"), unseen("10.0.0.2:1", "west")}, "", "[10.0.0.2:1]"},
		{"all of its addresses are gone", []server{alive("10.0.0.3:1", "")}, "10.0.0.2:1", "[10.0.0.3:1]"},
	} {
		var present []netip.AddrPort
		if tc.present != "" {
			present = []netip.AddrPort{netip.MustParseAddrPort(tc.present)}
		}
		if got := fmt.Sprint(addressesFor(tc.servers, "west", present)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	slices := slicesOf(servers("10.0.0.1:7443", "10.0.0.2:7443", "[fd00::1]:8443"))
	if got := fmt.Sprint(presentAddresses(slices)); got != "[10.0.0.1:7443 10.0.0.2:7443 [fd00::1]:8443]" {
		t.Error(got)
	}
}

func TestEndpoint(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:7443": "10.0.0.1:7443", "[fd00::1]:7443": "[fd00::1]:7443", "[::ffff:10.0.0.1]:7443": "10.0.0.1:7443",
		"": "", "atoll.example:7443": "", "10.0.0.1": "", "10.0.0.1:0": "", "127.0.0.1:7443": "", "[::1]:7443": "",
		"0.0.0.0:7443": "", "169.254.1.1:7443": "", "[fe80::1%eth0]:7443": "", "224.0.0.1:7443": "",
	} {
		got, usable := endpoint(address)
		if usable != (want != "") || usable && got != netip.MustParseAddrPort(want) {
			t.Errorf("%q: %v %v, want %q", address, got, usable, want)
		}
	}
}
