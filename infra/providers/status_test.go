package providers

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

func works(server string) opinion {
	t := newTable([]candidate{has("demo", 0, "*", "demo_a")})
	return opinion{server: server, installed: &known{Version: "1.0.0", Content: "h1:x", From: "a mirror"}, serving: t.groups[0], protocol: 6}
}

func fails(server string) opinion {
	return opinion{server: server, failure: &failure{reason: v1alpha1.ReasonNotFound, message: "no such package"}}
}

func status(t *testing.T, s *v1alpha1.ProviderStatus) string {
	t.Helper()
	i, v := meta.FindStatusCondition(s.Conditions, v1alpha1.ProviderInstalled), meta.FindStatusCondition(s.Conditions, v1alpha1.ProviderServed)
	return i.Reason + "/" + v.Reason
}

var noon = metav1.NewTime(time.Unix(1e9, 0))

func TestWhatWorksOnOneServerCounts(t *testing.T) {
	for _, c := range []struct {
		name     string
		says     []opinion
		want     string
		wantSays string
	}{
		{"none has come to an end", []opinion{{server: "a"}}, "Installing/NotInstalled", "a: it is being installed"},
		{"one", []opinion{works("a")}, "Installed/Served", "by a"},
		{"one fails", []opinion{fails("a")}, "NotFound/NotInstalled", "a: no such package"},
		{"another fails later", []opinion{works("a"), fails("b")}, "Installed/Served", "by a"},
		{"another succeeds later", []opinion{fails("b"), works("a")}, "Installed/Served", "by a"},
		{"the same fails later", []opinion{works("a"), fails("a")}, "NotFound/NotInstalled", "a: no such package"},
		{"the last of those that fail is heard", []opinion{fails("a"), fails("b")}, "NotFound/NotInstalled", "b: no such package"},
		{"a taken type is so for all", []opinion{works("a"), func() opinion {
			o := works("b")
			o.serving, o.denied = nil, &denial{v1alpha1.ReasonTypeTaken, "taken"}
			return o
		}()}, "Installed/TypeTaken", "by a"},
		{"so is a group", []opinion{works("a"), func() opinion { o := works("b"); o.refused = "a CRD has it"; return o }()}, "Installed/GroupTaken", "by a"},
		{"it does not start", []opinion{{server: "a", installed: &known{From: "m"}, failure: &failure{reason: v1alpha1.ReasonDoesNotStart, message: "exit status 1"}}},
			"Installed/DoesNotStart", "by a"},
	} {
		s := &v1alpha1.ProviderStatus{}
		for _, o := range c.says {
			o.write(s, 1, "demo.providers.atoll.dev", noon)
		}
		got := meta.FindStatusCondition(s.Conditions, v1alpha1.ProviderInstalled).Message
		if status(t, s) != c.want || !strings.Contains(got, c.wantSays) {
			t.Errorf("%s: %s %q, want %s %q", c.name, status(t, s), got, c.want, c.wantSays)
		}
	}
}

func TestLaterSpecWins(t *testing.T) {
	s := &v1alpha1.ProviderStatus{}
	works("a").write(s, 1, "g", noon)
	if !fails("b").write(s, 2, "g", noon) || status(t, s) != "NotFound/NotInstalled" {
		t.Errorf("of the new spec: %s", status(t, s))
	}
	if works("a").write(s, 1, "g", noon) {
		t.Error("a server that has not seen the new spec wrote over it")
	}
	if s.ObservedGeneration != 2 {
		t.Errorf("observed generation %d", s.ObservedGeneration)
	}
}

// Servers write when they have something to say, and not because another has: whatever the order, nobody has
// more to say after two rounds, unless all fail, and then each says its own.
func TestServersDoNotFight(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var servers []opinion
		good := false
		for _, name := range []string{"a", "b", "c"} {
			switch random.IntN(3) {
			case 0:
				servers = append(servers, works(name))
				good = true
			case 1:
				servers = append(servers, fails(name))
			default:
				servers = append(servers, opinion{server: name})
			}
		}
		if !good {
			continue
		}
		s := &v1alpha1.ProviderStatus{}
		random.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
		for range 2 {
			for _, o := range servers {
				o.write(s, 1, "g", noon)
			}
		}
		for _, o := range servers {
			if before := status(t, s); o.write(s, 1, "g", noon) {
				t.Fatalf("%s goes on writing: %s, then %s", o.server, before, status(t, s))
			}
		}
		if status(t, s) != "Installed/Served" || s.Digest != "h1:x" || s.ResourceTypes != 1 || s.DataSources != 1 || s.Protocol != 6 {
			t.Fatalf("%s: %+v", status(t, s), s)
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	s := &v1alpha1.ProviderStatus{}
	o := fails("a")
	o.failure.message = strings.Repeat("é", 5000)
	o.write(s, 1, "g", noon)
	if m := s.Conditions[0].Message; len(m) > longest+10 || !strings.HasSuffix(m, "…") || strings.Contains(m, "\uFFFD") {
		t.Errorf("%d bytes", len(m))
	}
}
