package transition

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// fleets is how many random fleets each property is tested with.
const fleets = 10000

var streams = flag.Uint64("streams", 1, "how often TestStepsAreSafe runs, each time with other fleets")

// TestStepsAreSafe lets objects move between the clusters of random fleets, with slow and broken replicas, reports
// that come late, and clusters that do not answer for a time. At every instant enough replicas are available, and
// each transition reaches its goal, returns, or rests with a reason.
func TestStepsAreSafe(t *testing.T) {
	outcomes := map[string]int{}
	for i := range fleets * *streams {
		seed, stream := i%fleets, 1+i/fleets
		w := newWorld(seed, stream)
		outcomes[w.rule()+" "+w.run(t)]++
		if t.Failed() {
			for _, line := range w.history {
				t.Log(line)
			}
			t.Fatalf("seed %d, stream %d: %s, %s to %s", seed, stream, w.rule(), text(w.in.From), text(w.goal))
		}
	}
	t.Log(outcomes)
	for _, rule := range []string{"replicas", "copies", "numbered", "volumes", "together", "exclusive", "autoscaled"} {
		if outcomes[rule+" reached"] < fleets/20 {
			t.Errorf("%d of the transitions of %s reached their goal", outcomes[rule+" reached"], rule)
		}
	}
	if outcomes["replicas returned"] == 0 || outcomes["numbered returned"] == 0 || outcomes["copies returned"] == 0 {
		t.Error("no transition returned")
	}
}

// world is a fleet with one object.
type world struct {
	r       *rand.Rand
	in      Input
	goal    []Share
	members map[string]*member
	names   []string
	at      time.Time
	history []string
	rolled  bool
	faults  []string // of volumes
	// edit is when the goal changes to another one, and lost the cluster that fails for good; -1 and "" if none does.
	edit int
	lost string
	// exported: clusters import the replicas' endpoints.
	exported bool
	imports  map[string]*importer // by the cluster that the endpoints are in
}

// member is a cluster as it really is. Its API server may not answer for a time, while its pods run.
type member struct {
	share    Share
	has      bool
	present  bool
	revision int32          // of the last share
	pods     map[int32]*pod // by ordinal, or just by number
	broken   bool
	silent   int // for so many ticks
	delay    int // until it applies a share
	pending  int
	reported Report
	of       Share // the share of the report
	ofHas    bool
	disk     disk
}

type pod struct{ ready, dying int }

func newWorld(seed, stream uint64) *world {
	r := rand.New(rand.NewPCG(seed, stream))
	w := &world{r: r, members: map[string]*member{}, imports: map[string]*importer{}, at: time.Unix(1e9, 0)}
	for i := range 2 + r.IntN(4) {
		name := string(rune('a' + i))
		w.names = append(w.names, name)
		w.members[name] = &member{pods: map[int32]*pod{}, delay: r.IntN(3), disk: newDisk()}
	}
	w.in.Rule = Rule(r.IntN(4))
	whole := w.in.Rule == Exclusive || w.in.Rule == Overlapping && r.IntN(2) == 0
	w.in.Wanted = int32(1 + r.IntN(12))
	w.in.Limits = LimitsFor(w.in.Wanted)
	w.in.Limits.MaxSurge = int32(r.IntN(6))
	if r.IntN(3) == 0 {
		w.in.Limits.MaxUnavailable = int32(r.IntN(int(w.in.Wanted)))
	}
	if r.IntN(4) == 0 {
		w.in.Limits.Soak = time.Duration(r.IntN(4)) * time.Second
	}
	if r.IntN(4) == 0 {
		w.in.Floor = Floor{int32(r.IntN(int(w.in.Wanted) + 1)), "PodDisruptionBudget web"}
	}
	w.in.Limits.Deadline = time.Minute
	w.mountTogether()
	w.exported = r.IntN(3) == 0 && w.in.Rule != Exclusive
	w.in.From = w.shares(w.in.Wanted, whole)
	w.goal = w.shares(w.in.Wanted, whole)
	if w.edit = -1; r.IntN(3) == 0 {
		w.edit = r.IntN(60)
	}
	if first := w.in.From[0].Cluster; r.IntN(8) == 0 && !slices.ContainsFunc(w.goal, func(s Share) bool { return s.Cluster == first }) {
		w.lost = first
	}
	w.withVolumes()
	w.in.Now = w.in.From
	for _, s := range w.in.From {
		m := w.members[s.Cluster]
		m.share, m.has, m.present = s, true, true
		for i := range w.size(s) {
			m.pods[s.Start+i] = &pod{}
			m.disk.claims[w.volumeOf(s.Start+i)] = true
		}
		m.of, m.ofHas = s, true
		m.reported = Report{Present: true, Settled: true, Healthy: true, Available: m.available(), Running: w.size(s)}
	}
	for _, name := range w.names {
		m := w.members[name]
		m.broken = !m.has && r.IntN(5) == 0
		if name == w.lost {
			m.silent, m.pods = 1<<30, map[int32]*pod{}
			continue
		}
		if r.IntN(6) == 0 {
			m.silent = r.IntN(80)
		}
	}
	return w
}

// shares returns a random division.
func (w *world) shares(total int32, whole bool) []Share {
	if w.in.Volumes.Together {
		s := Share{Cluster: w.names[w.r.IntN(len(w.names))], Whole: w.r.IntN(2) == 0}
		if !s.Whole {
			s.Replicas = total
		}
		return []Share{s}
	}
	var out []Share
	start := int32(0)
	for i, name := range w.names {
		if w.r.IntN(2) == 0 && (i < len(w.names)-1 || len(out) > 0) {
			continue
		}
		n := int32(w.r.IntN(int(total) + 1))
		out = append(out, Share{Cluster: name, Whole: whole, Replicas: n})
		if whole {
			out[len(out)-1].Replicas = 0
			if w.in.Rule == Exclusive {
				break
			}
		} else {
			total -= n
		}
	}
	if len(out) == 0 {
		out = []Share{{Cluster: w.names[0], Whole: whole}}
	}
	if !whole {
		out[len(out)-1].Replicas += total
		for i := range out {
			if w.in.Rule == Numbered {
				out[i].Start = start
			}
			start += out[i].Replicas
		}
	}
	return out
}

func (w *world) rule() string {
	switch {
	case w.in.Rule == Exclusive:
		return "exclusive"
	case w.in.Volumes.Together:
		return "together"
	case w.in.Rule == Numbered && len(w.in.Volumes.Claims) > 0:
		return "volumes"
	case w.in.Rule == Numbered:
		return "numbered"
	case w.in.Rule == Autoscaled:
		return "autoscaled"
	case len(w.goal) > 0 && w.goal[0].Whole:
		return "copies"
	}
	return "replicas"
}

func (w *world) size(s Share) int32 {
	if s.Whole {
		return w.in.Wanted
	}
	return s.Replicas
}

// run runs the transition to its end.
func (w *world) run(t *testing.T) string {
	t.Helper()
	w.in.Goal, w.in.Progress = w.goal, w.at
	last, quiet := "", 0
	for i := range 2000 {
		if i == w.edit && !w.rolled {
			w.in.Goal = w.shares(w.in.Wanted, w.in.Rule == Exclusive || w.rule() == "copies")
			w.log("the goal changes to " + text(w.in.Goal))
			if slices.ContainsFunc(w.in.Goal, func(s Share) bool { return s.Cluster == w.lost }) {
				return "edited"
			}
		}
		w.tick()
		w.in.Reports = w.reports()
		w.in.At = w.at
		out := Step(w.in)
		if len(out.Failed) > 0 {
			if w.rolled {
				t.Error("it returns twice")
			}
			w.in.Goal, w.in.From, w.in.Final, w.rolled = w.in.From, w.in.Goal, true, true
			w.in.Progress = w.at
			w.log("returns, because of " + fmt.Sprint(out.Failed))
			continue
		}
		w.check(t)
		w.checkEndpoints(t, out)
		w.checkVolumes(t, out.Done && text(w.in.Now) == text(out.Next))
		if t.Failed() {
			return "failed"
		}
		if out.Done && text(w.in.Now) == text(out.Next) {
			if w.rolled {
				return "returned"
			}
			return "reached"
		}
		if text(w.in.Now) != text(out.Next) || !slices.Equal(w.in.Volumes.Transfers, out.Transfers) {
			w.log(fmt.Sprintf("%s: %s %v, waits for %s", out.Phase, text(out.Next), out.Transfers, out.WaitingFor))
			w.in.Now, w.in.Volumes.Transfers, w.in.Underway, w.in.Progress = out.Next, out.Transfers, true, w.at
			quiet = 0
		} else if out.WaitingFor == "" {
			t.Error("it rests without a reason")
		}
		if out.Phase != w.in.Phase {
			w.in.Phase, w.in.Since = out.Phase, w.at
		}
		if out.WaitingFor == last {
			quiet++
		}
		if last = out.WaitingFor; quiet > 300 {
			return "rested"
		}
	}
	t.Errorf("it neither ends nor rests: %s", last)
	return "failed"
}

func (w *world) log(line string) {
	w.history = append(w.history, fmt.Sprintf("%3d %s", int(w.at.Sub(time.Unix(1e9, 0)).Seconds()), line))
}

// tick lets a second pass in all members.
func (w *world) tick() {
	w.at = w.at.Add(time.Second)
	for _, name := range w.names {
		m := w.members[name]
		var desired Share
		chosen := false
		for _, s := range w.in.Now {
			if s.Cluster == name {
				desired, chosen = s, true
			}
		}
		if m.silent--; m.silent < 0 && (m.has != chosen || m.share != desired) {
			if m.pending++; m.pending > m.delay {
				if m.pending, m.has, m.share = 0, chosen, desired; chosen {
					m.revision = desired.Revision
				}
				m.present = m.present || chosen
				m.scale(w)
			}
		}
		for ordinal, p := range m.pods {
			if p.ready > 0 {
				p.ready--
			}
			if p.dying > 0 {
				if p.dying--; p.dying == 0 {
					delete(m.pods, ordinal)
				}
			}
		}
		if !m.has && len(m.pods) == 0 && m.silent < 0 {
			m.present = false
		}
		m.act(name, w)
		w.withdraw(name)
	}
}

// scale makes a member run its share. Pods that are not ready stop first, as far as they are not numbered.
func (m *member) scale(w *world) {
	size := int32(0)
	if m.has {
		size = w.size(m.share)
	}
	if w.in.Rule == Numbered {
		for ordinal, p := range m.pods {
			if p.dying == 0 && (ordinal < m.share.Start || ordinal >= m.share.Start+size) {
				p.dying = 1 + w.r.IntN(4)
			}
		}
		for ordinal := m.share.Start; ordinal < m.share.Start+size; ordinal++ {
			if m.pods[ordinal] == nil {
				m.pods[ordinal] = m.start(w)
				w.mount(m, ordinal)
			}
		}
		return
	}
	living := func() (n int32) {
		for _, p := range m.pods {
			if p.dying == 0 {
				n++
			}
		}
		return n
	}
	for _, onlyUnready := range []bool{true, false} {
		for _, p := range m.pods {
			if living() > size && p.dying == 0 && (!onlyUnready || p.ready > 0) {
				p.dying = 1 + w.r.IntN(4)
			}
		}
	}
	for i := int32(0); living() < size; i++ {
		if m.pods[i] == nil {
			m.pods[i] = m.start(w)
			w.mount(m, i)
		}
	}
}

func (m *member) start(w *world) *pod {
	if m.broken {
		return &pod{ready: 1 << 30}
	}
	return &pod{ready: w.r.IntN(9)}
}

func (m *member) available() (n int32) {
	for _, p := range m.pods {
		if p.ready == 0 && p.dying == 0 {
			n++
		}
	}
	return n
}

// reports returns the members' reports. A member reports late, now and then.
func (w *world) reports() map[string]Report {
	out := map[string]Report{}
	for _, name := range w.names {
		m := w.members[name]
		if m.silent < 0 && w.r.IntN(3) > 0 {
			m.of, m.ofHas = m.share, m.has
			m.reported = Report{Present: m.present, Revision: m.revision, Settled: true, Available: m.available(), Running: int32(len(m.pods)), Healthy: m.has && m.available() == w.size(m.share), Volumes: m.disk.report()}
		}
		r := m.reported
		r.Present = m.present || r.Present
		r.Unreachable = m.silent >= 0
		now, chosen := Share{}, false
		for _, s := range w.in.Now {
			if s.Cluster == name {
				now, chosen = s, true
			}
		}
		if name == w.lost {
			r.Unreachable, r.Lost = true, true
		}
		of := m.of
		of.Drain, now.Drain = Drain{}, Drain{}
		r.Current = !r.Unreachable && m.ofHas == chosen && of == now
		w.endpoints(name, &r)
		if r.Present || chosen {
			out[name] = r
		}
	}
	return out
}

// check compares what really runs with the limits.
func (w *world) check(t *testing.T) {
	t.Helper()
	available, copies, running := int32(0), 0, 0
	seen := map[int32]string{}
	for _, name := range w.names {
		m := w.members[name]
		available += m.available()
		if len(m.pods) > 0 {
			running++
		}
		if w.in.Rule == Exclusive && len(m.pods) > 0 || m.available() > 0 {
			copies++
		}
		if w.in.Rule != Numbered {
			continue
		}
		for ordinal := range m.pods {
			if other := seen[ordinal]; other != "" {
				t.Errorf("replica %d runs in %s and %s", ordinal, other, name)
			}
			seen[ordinal] = name
		}
	}
	floor := max(w.in.Wanted-w.in.Limits.MaxUnavailable, w.in.Floor.Available)
	switch w.rule() {
	case "together":
		if running > 1 {
			t.Errorf("%d clusters run replicas that mount the same claims", running)
		}
		floor = w.in.Floor.Available
	case "exclusive":
		if copies > 1 {
			t.Errorf("%d clusters run it", copies)
		}
		return
	case "copies":
		if copies == 0 && w.lost == "" {
			t.Error("no copy is available")
		}
		return
	case "numbered", "volumes":
		floor = min(floor, max(w.in.Wanted-max(1, w.in.Limits.MaxUnavailable), w.in.Floor.Available))
		if w.in.Floor.Available == w.in.Wanted {
			floor = w.in.Wanted
		}
	}
	if available < floor && w.lost == "" && w.in.Limits.MaxUnavailable < w.in.Wanted {
		t.Errorf("%d replicas are available, and %d have to be", available, floor)
	}
}

func text(shares []Share) string {
	out := ""
	for _, s := range shares {
		switch {
		case s.Whole:
			out += s.Cluster + " "
		case s.Start > 0:
			out += fmt.Sprintf("%s[%d,%d) ", s.Cluster, s.Start, s.end())
		default:
			out += fmt.Sprintf("%s %d ", s.Cluster, s.Replicas)
		}
		if s.Drain.Revision > 0 {
			out += fmt.Sprintf("(%d stay) ", s.Drain.Replicas)
		}
	}
	return out
}
