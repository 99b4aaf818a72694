package containment

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func machine(landlock int) Machine {
	return Machine{System: "linux", Landlock: landlock, Filters: true}
}

func process() Process {
	return Process{Program: "/data/providers/store/packages/x/provider", Package: "/data/providers/store/packages/x", Directory: "/data/providers/run/p-1"}
}

// granted returns the access that a profile grants to a path, and the field that grants it.
func granted(p Profile, path string) (Access, string) {
	access, field := Access(""), ""
	for _, rule := range p.Rules {
		if Within(path, rule.Path) && (access == "" || rule.Access == ReadWrite) {
			access, field = rule.Access, rule.Field
		}
	}
	return access, field
}

// TestDecide: what a provider may do by default, and what its spec adds.
func TestDecide(t *testing.T) {
	spec := Spec{Files: []File{{"/etc/aws", ReadOnly}, {"/srv/world", ReadWrite}}, TCPPorts: []uint16{443}, Protected: []string{"/data"}}
	with := process()
	with.TrustedCertificates = []string{"/etc/atoll/ca.crt", "/data/pki"}
	p, err := Decide(spec, with, machine(7))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Access{
		"/data/providers/store/packages/x/LICENSE": ReadOnly, "/data/providers/run/p-1/socket": ReadWrite,
		"/data/providers/store/packages/y/provider": "", "/data/providers/run/p-2/socket": "", "/data/pki/ca.key": "", "/data/atoll.db": "", "/data": "",
		"/etc/ssl/certs/ca-certificates.crt": ReadOnly, "/etc/ssl/private/key.pem": "", "/etc/pki/tls/private/key": "", "/etc/atoll/ca.crt": ReadOnly, "/etc/atoll/token": "",
		"/etc/resolv.conf": ReadOnly, "/etc/hosts": ReadOnly, "/etc/passwd": "", "/etc/shadow": "", "/usr/share/zoneinfo/Europe/Berlin": ReadOnly,
		"/lib64/ld-linux-x86-64.so.2": ReadOnly, "/usr/bin/curl": "", "/dev/null": ReadWrite, "/dev/urandom": ReadOnly, "/dev/sda": "", "/dev/shm/x": "",
		"/proc/1/environ": "", "/proc/cmdline": "", "/root/.aws/credentials": "", "/home/ann/.kube/config": "", "/tmp/x": "", "/run/docker.sock": "", "/": "",
		"/etc/aws/config": ReadOnly, "/etc/awsome": "", "/srv/world/objects/1": ReadWrite,
	} {
		if got, _ := granted(p, path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if _, field := granted(p, "/srv/world/x"); field != "spec.files[1].path" {
		t.Errorf("the field of /srv/world is %q", field)
	}
	if !p.RestrictTCP || !slices.Equal(p.TCPPorts, spec.TCPPorts) || !p.Scoped || !p.Filter || p.DenyTruncate || p.Limits.Processes != 0 || p.Limits.OpenFiles == 0 {
		t.Errorf("%+v", p)
	}
}

// TestOptionalParts: parts that a machine cannot enforce are reported, and files are contained all the same.
func TestOptionalParts(t *testing.T) {
	own := process()
	own.User, own.OwnUser = &User{60600, 60600}, true
	for _, c := range []struct {
		name        string
		process     Process
		machine     Machine
		ports       []uint16
		notEnforced []string
	}{
		{"all", own, machine(6), []uint16{443}, nil},
		{"no ports", own, machine(6), nil, nil},
		{"no connection at all", own, machine(6), []uint16{}, nil},
		{"the server's own user", process(), machine(6), nil, []string{PartUser}},
		{"no scopes", process(), machine(5), nil, []string{PartUser, PartSignals, PartAbstractSockets}},
		{"no scopes, but a user of its own", own, machine(5), nil, []string{PartAbstractSockets}},
		{"no ports on an old kernel", own, machine(3), []uint16{443}, []string{PartAbstractSockets, PartTCPPorts}},
		{"the first version", own, machine(1), nil, []string{PartAbstractSockets}},
		{"no filters", own, Machine{System: "linux", Landlock: 7}, nil, []string{PartSystemCalls}},
	} {
		p, err := Decide(Spec{TCPPorts: c.ports}, c.process, c.machine)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !slices.Equal(p.NotEnforced, c.notEnforced) || !slices.Contains(p.Enforced, PartFiles) {
			t.Errorf("%s: enforced %v, not enforced %v, want %v", c.name, p.Enforced, p.NotEnforced, c.notEnforced)
		}
		if p.DenyTruncate != (c.machine.Landlock < 3) || (p.Limits.Processes > 0) != c.process.OwnUser || p.RestrictTCP != (c.ports != nil && c.machine.Landlock >= 4) {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// TestImpossible: without Landlock there is no profile, and the error says what to do.
func TestImpossible(t *testing.T) {
	for says, m := range map[string]Machine{
		"this kernel has no Landlock": machine(0), "darwin has no Landlock": {System: "darwin", Landlock: 7},
		"from being truncated": {System: "linux", Landlock: 2},
	} {
		_, err := Decide(Spec{}, process(), m)
		if !errors.Is(err, ErrImpossible) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "spec.containment: None") {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// TestFilesAreChecked: an error names the field and the remedy.
func TestFilesAreChecked(t *testing.T) {
	for path, says := range map[string]string{
		"etc/aws": "must be an absolute path", "": "must be an absolute path", "/": "must not be the root directory", "/etc/../data": "write /data", "/etc/": "write /etc",
		"/etc//aws": "write /etc/aws", "/a\x00b": "NUL", "/" + strings.Repeat("a", MaxPath): "at most 1024 bytes",
		"/data": "is in /data", "/data/pki/ca.key": "is in /data", "/srv": "contains /srv/atoll", "/srv/atoll": "is in /srv/atoll",
	} {
		_, err := Decide(Spec{Files: []File{{"/fine", ReadOnly}, {path, ReadOnly}}, Protected: []string{"/data", "/srv/atoll"}}, process(), machine(7))
		if err == nil || !strings.HasPrefix(err.Error(), "spec.files[1].path: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := Decide(Spec{Files: []File{{"/a", "Execute"}}}, process(), machine(7)); err == nil || !strings.Contains(err.Error(), "spec.files[0].access") {
		t.Error(err)
	}
	for _, path := range []string{"/database", "/dat", "/srv/atoll2"} {
		if _, err := Decide(Spec{Files: []File{{path, ReadOnly}}, Protected: []string{"/data", "/srv/atoll"}}, process(), machine(7)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestDecideIsPure: a decision shares nothing with its arguments, and the same arguments give the same one.
func TestDecideIsPure(t *testing.T) {
	spec := Spec{Files: []File{{"/a", ReadOnly}}, TCPPorts: []uint16{1}}
	one, err := Decide(spec, process(), machine(7))
	if err != nil {
		t.Fatal(err)
	}
	two, _ := Decide(spec, process(), machine(7))
	if !reflect.DeepEqual(one, two) {
		t.Error("two decisions differ")
	}
	one.TCPPorts[0] = 2
	if spec.TCPPorts[0] != 1 {
		t.Error("the decision shares its ports")
	}
}

// TestUsers: each provider has a user of its own while there are enough, and the same one after a restart.
func TestUsers(t *testing.T) {
	users := Users{First: 100, Count: 8}
	taken := map[uint32]bool{}
	for i := range 8 {
		u := users.Pick(fmt.Sprint("provider", i), taken)
		if u.UID < 100 || u.UID >= 108 || u.GID != u.UID || taken[u.UID] {
			t.Fatalf("provider %d is %+v", i, u)
		}
		taken[u.UID] = true
	}
	if u := users.Pick("one more", taken); u.UID < 100 || u.UID >= 108 {
		t.Errorf("one more is %+v", u)
	}
	if users.Pick("a", nil) != users.Pick("a", map[uint32]bool{1: true}) {
		t.Error("the user of a provider depends on others")
	}
}
