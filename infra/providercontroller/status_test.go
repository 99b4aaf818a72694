package providercontroller

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

func working(server string) localStatus {
	t := newTable([]candidate{has("demo", 0, "*", "demo_a")})
	return localStatus{server: server, installed: &packageRecord{Version: "1.0.0", Content: "h1:x", From: "a mirror"}, serving: t.groups[0], protocol: 6}
}

func failing(server string) localStatus {
	return localStatus{server: server, failure: &failure{reason: v1alpha1.ReasonNotFound, message: "no such package"}}
}

func status(t *testing.T, s *v1alpha1.ProviderStatus) string {
	t.Helper()
	i, v := meta.FindStatusCondition(s.Conditions, v1alpha1.ProviderInstalled), meta.FindStatusCondition(s.Conditions, v1alpha1.ProviderServed)
	return i.Reason + "/" + v.Reason
}

var noon = metav1.NewTime(time.Unix(1e9, 0))

func TestWorkingServerWins(t *testing.T) {
	for _, c := range []struct {
		name        string
		statuses    []localStatus
		want        string
		wantMessage string
	}{
		{"no attempt has finished", []localStatus{{server: "a"}}, "Installing/NotInstalled", "a: installation in progress"},
		{"one", []localStatus{working("a")}, "Installed/Served", "by a"},
		{"one fails", []localStatus{failing("a")}, "NotFound/NotInstalled", "a: no such package"},
		{"another fails later", []localStatus{working("a"), failing("b")}, "Installed/Served", "by a"},
		{"another succeeds later", []localStatus{failing("b"), working("a")}, "Installed/Served", "by a"},
		{"the same server fails later", []localStatus{working("a"), failing("a")}, "NotFound/NotInstalled", "a: no such package"},
		{"among failing servers the last one wins", []localStatus{failing("a"), failing("b")}, "NotFound/NotInstalled", "b: no such package"},
		{"a taken type applies to all servers", []localStatus{working("a"), func() localStatus {
			o := working("b")
			o.serving, o.denied = nil, &denial{v1alpha1.ReasonTypeTaken, "taken"}
			return o
		}()}, "Installed/TypeTaken", "by a"},
		{"a taken group applies to all servers", []localStatus{working("a"), func() localStatus { o := working("b"); o.refused = "a CRD has it"; return o }()}, "Installed/GroupTaken", "by a"},
		{"it does not start", []localStatus{{server: "a", installed: &packageRecord{From: "m"}, failure: &failure{reason: v1alpha1.ReasonDoesNotStart, message: "exit status 1"}}},
			"Installed/DoesNotStart", "by a"},
	} {
		s := &v1alpha1.ProviderStatus{}
		for _, o := range c.statuses {
			o.mergeInto(s, 1, "demo.providers.atoll.dev", noon)
		}
		got := meta.FindStatusCondition(s.Conditions, v1alpha1.ProviderInstalled).Message
		if status(t, s) != c.want || !strings.Contains(got, c.wantMessage) {
			t.Errorf("%s: %s %q, want %s %q", c.name, status(t, s), got, c.want, c.wantMessage)
		}
	}
}

func TestLaterSpecWins(t *testing.T) {
	s := &v1alpha1.ProviderStatus{}
	working("a").mergeInto(s, 1, "g", noon)
	if !failing("b").mergeInto(s, 2, "g", noon) || status(t, s) != "NotFound/NotInstalled" {
		t.Errorf("status of the new spec: %s", status(t, s))
	}
	if working("a").mergeInto(s, 1, "g", noon) {
		t.Error("a server that has not observed the new spec overwrote the status")
	}
	if s.ObservedGeneration != 2 {
		t.Errorf("observed generation %d", s.ObservedGeneration)
	}
}

// Servers write because of their own knowledge, and not because another one wrote: in any order, no
// server has anything to write after two rounds, unless all of them fail and report their own
// reasons.
func TestServersDoNotFight(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var servers []localStatus
		good := false
		for _, name := range []string{"a", "b", "c"} {
			switch random.IntN(3) {
			case 0:
				servers = append(servers, working(name))
				good = true
			case 1:
				servers = append(servers, failing(name))
			default:
				servers = append(servers, localStatus{server: name})
			}
		}
		if !good {
			continue
		}
		s := &v1alpha1.ProviderStatus{}
		random.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
		for range 2 {
			for _, o := range servers {
				o.mergeInto(s, 1, "g", noon)
			}
		}
		for _, o := range servers {
			if before := status(t, s); o.mergeInto(s, 1, "g", noon) {
				t.Fatalf("%s keeps writing: %s, then %s", o.server, before, status(t, s))
			}
		}
		if status(t, s) != "Installed/Served" || s.Digest != "h1:x" || s.ResourceTypes != 1 || s.DataSources != 1 || s.Protocol != 6 {
			t.Fatalf("%s: %+v", status(t, s), s)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	s := &v1alpha1.ProviderStatus{}
	o := failing("a")
	o.failure.message = strings.Repeat("é", 5000)
	o.mergeInto(s, 1, "g", noon)
	if m := s.Conditions[0].Message; len(m) > maxMessage+10 || !strings.HasSuffix(m, "…") || strings.Contains(m, "\uFFFD") {
		t.Errorf("%d bytes", len(m))
	}
}
