package placement

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
)

// TestScripts runs the scripts of testdata. Each line is a command:
//
//	cluster NAME [label=value|ready|notready|why:REASON|unconfirmed|cordoned|drained|paused|undrained|leaving|gone] [taint:key=value:Effect[@seconds]] [cpu:8] [limit:4] [nodes:2x8,8/3]
//	policy YAML            the policy from now on, in one line or in the following indented lines
//	object NAME [replicas:N] [mode:M] [cpu:1] [finished]
//	obstacle CLUSTER [keeps] TEXT
//	near|apart CLUSTER...  clusters with objects of the first term
//	pending CLUSTER:N...   pods without a node
//	awaits CLUSTER...      clusters that it is not the object's turn to leave
//	degraded CLUSTER...    clusters in which the object is not Healthy for too long
//	home CLUSTER[:N]... after:SECONDS  where the object ran before it failed over, until it returns
//	consolidates after:SECONDS  it goes back to earlier groups, until another object is decided
//	wait SECONDS
//	decide                 followed by the expected decision, then verdicts, up to an empty line
//
// Only the verdicts of the listed clusters are compared.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			newScript(t).play(string(text))
		})
	}
}

type script struct {
	t        *testing.T
	clusters []Cluster
	policy   *Policy
	object   Object
	request  Request
	previous map[string][]Share
	ledger   *Allocations
	rooms    *Rooms
	inputs   map[string]string
	now      time.Time
	line     int
}

func newScript(t *testing.T) *script {
	return &script{t: t, previous: map[string][]Share{}, ledger: NewAllocations(), rooms: NewRooms(), inputs: map[string]string{}, now: start.Add(time.Hour), request: Request{Obstacles: map[string]Obstacle{}}}
}

func (s *script) play(text string) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		s.line = i + 1
		command, rest, _ := strings.Cut(lines[i], " ")
		var block []string
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  ") {
			i++
			block = append(block, lines[i])
		}
		switch {
		case command == "" || strings.HasPrefix(command, "#"):
		case command == "decide":
			s.decide(block)
		case command == "policy":
			s.policy = policy(s.t, rest+"\n"+strings.Join(block, "\n"))
		default:
			s.set(command, strings.Fields(rest))
		}
	}
}

func (s *script) set(command string, words []string) {
	switch command {
	case "cluster":
		s.cluster(words)
	case "object":
		s.newObject(words)
	case "obstacle":
		o := Obstacle{Reason: "FieldUnknown", Message: strings.Join(words[1:], " ")}
		if words[1] == "keeps" {
			o.Keeps, o.Message = true, strings.Join(words[2:], " ")
		}
		s.request.Obstacles[words[0]] = o
	case "near":
		s.request.Affinity = []TermMatches{{Clusters: words}}
	case "apart":
		s.request.AntiAffinity = []TermMatches{{Clusters: words}}
	case "pending":
		s.request.Pending = map[string]int32{}
		for _, word := range words {
			name, n, _ := strings.Cut(word, ":")
			s.request.Pending[name] = int32(s.number(n))
		}
	case "awaits":
		s.request.Awaits = map[string]bool{}
		for _, name := range words {
			s.request.Awaits[name] = true
		}
	case "degraded":
		s.request.Degraded = map[string]time.Time{}
		for _, name := range words {
			s.request.Degraded[name] = start
		}
	case "consolidates":
		_, after, _ := strings.Cut(words[0], ":")
		s.request.Consolidate = &Consolidation{After: time.Duration(s.number(after)) * time.Second}
	case "home":
		s.request.Home = &Home{}
		for _, word := range words {
			name, n, counted := strings.Cut(word, ":")
			switch {
			case name == "after":
				s.request.Home.After = time.Duration(s.number(n)) * time.Second
			case counted:
				s.request.Home.Shares = append(s.request.Home.Shares, Share{Cluster: name, Replicas: int32(s.number(n))})
			default:
				s.request.Home.Shares = append(s.request.Home.Shares, Share{Cluster: name, Whole: true})
			}
		}
	case "wait":
		s.now = s.now.Add(time.Duration(s.number(words[0])) * time.Second)
		s.rooms.Expire(s.now)
	default:
		s.t.Fatalf("line %d: unknown command %q", s.line, command)
	}
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatalf("line %d: %v", s.line, err)
	}
	return n
}

func (s *script) cluster(words []string) {
	name := words[0]
	at := -1
	for i := range s.clusters {
		if s.clusters[i].Name == name {
			at = i
		}
	}
	if at < 0 {
		at = len(s.clusters)
		s.clusters = append(s.clusters, Cluster{Name: name, Joined: start.Add(time.Duration(at) * time.Minute), Ready: true,
			Since: start, Confirmed: true, EvictAfter: 5 * time.Minute, Labels: map[string]string{},
			Object: &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}})
	}
	c := &s.clusters[at]
	ready := func(is bool) {
		if c.Ready, c.Confirmed, c.Since, c.Why = is, true, s.now, ""; !is {
			c.Why = v1alpha1.ReasonClusterUnreachable
		}
	}
	for _, word := range words[1:] {
		kind, value, _ := strings.Cut(word, ":")
		switch kind {
		case "ready":
			ready(true)
		case "notready":
			ready(false)
		case "unconfirmed":
			ready(false)
			c.Confirmed = false
		case "why":
			c.Why = value
		case "cordoned":
			c.Unschedulable = true
		case "drained":
			c.Draining, c.DrainPaused = true, false
		case "paused":
			c.DrainPaused = true
		case "undrained":
			c.Draining, c.DrainPaused = false, false
		case "leaving":
			c.Leaving = true
		case "gone":
			s.clusters = append(s.clusters[:at:at], s.clusters[at+1:]...)
			return
		case "taint":
			c.Taints = append(c.Taints, s.taint(value))
		case "untainted":
			c.Taints = nil
		case "cpu":
			q := resource.MustParse(value)
			c.Allocatable = &Resources{CPU: q.MilliValue(), Memory: 1 << 40, Pods: 1000}
		case "version":
			c.Object.Status.Version = value
		case "nodes":
			c.Nodes = s.nodes(value)
			s.rooms.Report(name, c.Nodes, s.now)
		case "limit":
			cpu := resource.MustParse(value)
			c.Limits = &v1alpha1.ClusterLimits{CPU: &cpu}
		default:
			key, value, ok := strings.Cut(word, "=")
			if !ok {
				s.t.Fatalf("line %d: %q", s.line, word)
			}
			labels := map[string]string{}
			for k, v := range c.Labels {
				labels[k] = v
			}
			labels[topologyKey(key)] = value
			c.Labels = labels
		}
	}
}

// nodes reads "2x8,8/3": two empty nodes of 8 CPUs, and one of 8 with 3 free.
func (s *script) nodes(text string) *capacity.Nodes {
	var nodes []capacity.Node
	cpu := func(q resource.Quantity) corev1.ResourceList { return corev1.ResourceList{corev1.ResourceCPU: q} }
	for _, part := range strings.Split(text, ",") {
		count, size, several := strings.Cut(part, "x")
		if !several {
			count, size = "1", count
		}
		size, free, used := strings.Cut(size, "/")
		all := resource.MustParse(size)
		n := capacity.Node{Allocatable: cpu(all)}
		n.Allocatable[corev1.ResourcePods] = resource.MustParse("100")
		if used {
			all.Sub(resource.MustParse(free))
			n.Requested = cpu(all)
		}
		for range s.number(count) {
			nodes = append(nodes, n)
		}
	}
	return capacity.Prepare(capacity.Summarize(nodes, nil))
}

func (s *script) taint(text string) v1alpha1.Taint {
	key, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(key, "=")
	effect, timed := strings.CutSuffix(effect, "@now")
	taint := v1alpha1.Taint{Key: key, Value: value, Effect: v1alpha1.TaintEffect(effect)}
	if timed {
		taint.TimeAdded = &metav1.Time{Time: s.now}
	}
	return taint
}

func (s *script) newObject(words []string) {
	s.object = Object{Key: words[0], Group: "apps", Kind: "Deployment", Mode: v1alpha1.ModeDuplicated, Needs: Resources{Pods: 1}}
	s.request.Obstacles, s.request.Consolidate = map[string]Obstacle{}, nil
	for _, word := range words[1:] {
		kind, value, _ := strings.Cut(word, ":")
		switch kind {
		case "replicas":
			s.object.Mode, s.object.Divisible, s.object.Replicas = divided, true, int32(s.number(value))
		case "mode":
			s.object.Mode = v1alpha1.PlacementMode(value)
		case "cpu":
			q := resource.MustParse(value)
			s.object.Needs.CPU = q.MilliValue()
			s.object.Pods = []Pods{{Count: 1, Spec: map[string]any{"containers": []any{map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": value}}}}}}}
		case "finished":
			s.object.Finished = true
		case "rebalance":
			s.object.Rebalance = value
		default:
			s.t.Fatalf("line %d: %q", s.line, word)
		}
	}
}

func (s *script) decide(want []string) {
	s.t.Helper()
	r := s.request
	r.Object, r.Fleet, r.Policy, r.Previous, r.Allocations, r.Now = s.object, NewFleet(s.clusters), s.policy, s.previous[s.object.Key], s.ledger, s.now
	r.Room, r.Inputs = s.rooms.For(r.Fleet, &r.Object, nil, r.Previous), s.inputs[s.object.Key]
	d, verdicts := Explain(r)
	if plain := Decide(r); fmt.Sprint(plain) != fmt.Sprint(d) {
		s.t.Errorf("line %d: Explain and Decide differ:\n%v\n%v", s.line, plain, d)
	}
	s.previous[s.object.Key], s.inputs[s.object.Key] = d.Shares(), d.Inputs
	s.ledger.Set(s.object, d.Shares())
	s.rooms.Grant(&s.object, r.Previous, d.Shares(), s.now)
	got := []string{"  " + line(d)}
	if !d.Scheduled {
		got[0] = fmt.Sprintf("  %s! %s: %s", line(d), d.Reason, d.Message)
	}
	switch h := d.Home; {
	case h.Returned:
		got[0] += fmt.Sprintf("; returned to %s, left %s", strings.Join(h.To, ", "), strings.Join(h.Left, ", "))
		s.request.Home = nil
	case h.Waits != "":
		got[0] += "; returns when possible, but " + h.Waits
	case len(d.Consolidation.From) > 0:
		s.request.Consolidate.Since = d.Consolidation.Since
		if got[0] += fmt.Sprintf("; %s goes back in %s", strings.Join(d.Consolidation.From, ", "), d.Consolidation.At.Sub(s.now)); d.Consolidation.Returned {
			got[0] = strings.TrimSuffix(got[0], fmt.Sprintf(" in %s", d.Consolidation.At.Sub(s.now)))
		}
	case len(h.To) > 0:
		got[0] += fmt.Sprintf("; returns to %s in %s", strings.Join(h.To, ", "), h.At.Sub(s.now))
		if d.Recheck.IsZero() || d.Recheck.After(h.At) {
			s.t.Errorf("line %d: it returns at %s, and is checked at %s", s.line, h.At, d.Recheck)
		}
	}
	for _, w := range want[min(1, len(want)):] {
		name := strings.Fields(w)[0]
		for _, v := range verdicts {
			if v.Cluster == name {
				got = append(got, fmt.Sprintf("    %s %s: %s", v.Cluster, v.Reason, v.Message))
			}
		}
	}
	if s.request.Consolidate != nil && (len(d.Consolidation.From) == 0 || d.Consolidation.Returned) {
		s.request.Consolidate.Since = time.Time{}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		s.t.Errorf("line %d: got\n%s\nwant\n%s", s.line, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var shares any = d
	if _, err := yaml.Marshal(shares); err != nil {
		s.t.Error(err)
	}
}
