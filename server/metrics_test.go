package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/server"
)

// labelsByMetric returns the labels of every metric that a server registers, from its descriptors.
func labelsByMetric(t *testing.T) map[string][]string {
	t.Helper()
	text := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ".*", constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)
	out := map[string][]string{}
	for _, c := range append(server.Collectors(), etcd.NewKeyspaceMetrics(nil)) {
		descs := make(chan *prometheus.Desc)
		go func() { defer close(descs); c.Describe(descs) }()
		for d := range descs {
			m := text.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("unknown form of a descriptor: %s", d)
			}
			var labels []string
			if m[2] != "" {
				labels = strings.Split(m[2], ",")
			}
			out[m[1]] = labels
		}
	}
	return out
}

// TestMetricsAreDocumented compares docs/metrics.md with the metrics that a server registers.
func TestMetricsAreDocumented(t *testing.T) {
	page := readFile(t, "../docs/metrics.md")
	row := regexp.MustCompile("(?m)^\\| `(atoll_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\| [^|]{10,} \\|$")
	documented := map[string]bool{}
	registered := labelsByMetric(t)
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		name, kind := m[1], m[2]
		if documented[name] {
			t.Errorf("%s has two rows", name)
		}
		documented[name] = true
		var labels []string
		if l := strings.TrimSpace(m[3]); l != "" {
			labels = strings.Split(strings.ReplaceAll(l, "`", ""), ", ")
		}
		if have, ok := registered[name]; !ok || !slices.Equal(labels, have) {
			t.Errorf("%s is documented with labels %q, and registered (%v) with %q", name, labels, ok, have)
		}
		if total := strings.HasSuffix(name, "_total"); total != (kind == "counter") {
			t.Errorf("%s is a %s", name, kind)
		}
	}
	for name := range registered {
		if !documented[name] {
			t.Errorf("docs/metrics.md has no row for %s", name)
		}
		if !strings.HasPrefix(name, "atoll_") {
			t.Errorf("%s lacks the prefix", name)
		}
	}
}

// TestMetricsOfARunningServer: the metrics are exported with the workspace as a label and the types
// that the page says. The queues of controllers have Kubernetes' metrics.
func TestMetricsOfARunningServer(t *testing.T) {
	page := readFile(t, "../docs/metrics.md")
	out := scrape(t)
	for _, want := range []string{`atoll_fleet_leader{workspace="default"} `, `atoll_infra_leader{workspace="default"} `,
		`atoll_fleet_scheduler_decision_duration_seconds_count{workspace="default"} `, `atoll_infra_plan_unplanned_resources_total{workspace="default"} 0`} {
		if !strings.Contains(out, "\n"+want) {
			t.Errorf("no metric %s", want)
		}
	}
	eventually(t, "the queues of all controllers have metrics", func(context.Context) error {
		out = scrape(t)
		for _, name := range strings.Split("fleet_scheduler fleet_status fleet_customizations fleet_clusters fleet_expose fleet_imports infra_plans infra_providers infra_provider_configs", " ") {
			if !strings.Contains(page, "`"+name+"`") {
				return fmt.Errorf("docs/metrics.md does not name queue %s", name)
			}
			if !strings.Contains(out, fmt.Sprintf("\nworkqueue_depth{name=%q} ", name)) {
				return fmt.Errorf("queue %s has no metrics", name)
			}
		}
		return nil
	})
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (atoll_\S+) (\S+)$`).FindAllStringSubmatch(out, -1) {
		if !strings.Contains(page, fmt.Sprintf("\n| `%s` | %s | ", m[1], m[2])) {
			t.Errorf("docs/metrics.md does not say that %s is a %s", m[1], m[2])
		}
	}
	for name := range upstreamLabels() {
		if !strings.Contains(out, "\n# TYPE "+name+" ") {
			t.Errorf("the server has no metric %s, which the dashboard or the alerts use", name)
		}
	}
}

func scrape(t *testing.T) string {
	t.Helper()
	out, err := theServer(t).client(t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// upstreamLabels are the labels of Kubernetes' metrics that the dashboard and the alerts use.
func upstreamLabels() map[string][]string {
	return map[string][]string{
		"apiserver_request_total": {"code", "verb", "resource"}, "apiserver_request_duration_seconds": {"verb", "resource"}, "apiserver_current_inflight_requests": nil,
		"workqueue_depth": {"name"}, "workqueue_queue_duration_seconds": {"name"}, "process_resident_memory_bytes": nil,
	}
}

// expression is what a PromQL expression uses.
type expression struct {
	// labels of its result.
	labels []string
}

// checkExpression checks that an expression uses only metrics that exist, with labels that they have,
// and functions of PromQL. It is no parser, but it finds a name that was changed only in the code.
func checkExpression(known map[string][]string, text string) (expression, error) {
	var out expression
	grafana := strings.NewReplacer("$__rate_interval", "5m")
	rest := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(grafana.Replace(text), `""`)
	if strings.ContainsAny(rest, `$'`) || strings.Count(rest, `"`)%2 != 0 {
		return out, fmt.Errorf("unknown variable or open string in %s", rest)
	}
	var grouped []string
	rest = regexp.MustCompile(`\b(by|on) \(([a-z_, ]+)\)`).ReplaceAllStringFunc(rest, func(clause string) string {
		kind, list, _ := strings.Cut(strings.TrimSuffix(clause, ")"), " (")
		for label := range strings.SplitSeq(list, ", ") {
			grouped = append(grouped, label)
			if kind == "by" {
				out.labels = append(out.labels, label)
			}
		}
		return ""
	})
	used := map[string]bool{"instance": true, "workspace": true}
	var problem error
	rest = regexp.MustCompile(`([a-z_]+)(\{[^}]*\})?(\[[0-9a-z]+\])?`).ReplaceAllStringFunc(rest, func(selector string) string {
		name, matchers, _ := strings.Cut(strings.TrimSuffix(regexp.MustCompile(`\[[0-9a-z]+\]$`).ReplaceAllString(selector, ""), "}"), "{")
		base := name
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if _, exact := known[name]; !exact {
				base = strings.TrimSuffix(base, suffix)
			}
		}
		labels, isMetric := known[base]
		if !isMetric {
			if matchers != "" || strings.HasPrefix(name, "atoll") {
				problem = fmt.Errorf("no metric %s", name)
			}
			return name
		}
		for _, l := range labels {
			used[l] = true
		}
		if strings.HasSuffix(name, "_bucket") {
			used["le"] = true
		}
		for matcher := range strings.SplitSeq(matchers, ",") {
			label := strings.TrimRight(matcher, `=~!"`)
			if label != "" && label != "workspace" && !slices.Contains(labels, label) {
				problem = fmt.Errorf("%s has no label %s", name, label)
			}
		}
		return "1"
	})
	if problem != nil {
		return out, problem
	}
	for _, word := range regexp.MustCompile(`[a-z_]+\(?`).FindAllString(regexp.MustCompile(`\s+\(`).ReplaceAllString(rest, "("), -1) {
		switch word {
		case "sum(", "max(", "min(", "count(", "rate(", "increase(", "histogram_quantile(", "min_over_time(", "time(", "vector(", "and", "or", "and(", "or(", "e":
		default:
			return out, fmt.Errorf("%q is neither a metric nor a function", word)
		}
	}
	depth := 0
	for _, r := range rest {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth < 0 {
			break
		}
	}
	if depth != 0 || strings.ContainsAny(rest, "{}[]") {
		return out, fmt.Errorf("unbalanced parentheses: %s", rest)
	}
	for _, label := range grouped {
		if !used[label] {
			return out, fmt.Errorf("groups by %s, which no metric has", label)
		}
	}
	if len(out.labels) == 0 && !regexp.MustCompile(`\b(sum|max|min|count)\(`).MatchString(rest) {
		out.labels = slices.Collect(maps.Keys(used))
	}
	return out, nil
}

// TestExpressionsAreChecked: the check finds what it is for.
func TestExpressionsAreChecked(t *testing.T) {
	known := map[string][]string{"atoll_a_total": {"cluster"}, "atoll_b_seconds": {"reason"}}
	for text, ok := range map[string]bool{
		`sum by (cluster) (rate(atoll_a_total{cluster=~"e.*",workspace="w"}[5m])) > 0.1`:                       true,
		`histogram_quantile(0.99, sum by (reason, le) (rate(atoll_b_seconds_bucket[$__rate_interval]))) > 1e6`: true,
		`sum(atoll_a_total) > 0 and (sum(rate(atoll_b_seconds_count[5m])) or vector(0)) == 0`:                  true,
		`time() - max by (cluster) (atoll_a_total) > 3600`:                                                     true,
		`rate(atoll_c_total[5m]) > 0`:              false,
		`rate(atoll_a_total{reason="x"}[5m])`:      false,
		`sum by (reason) (atoll_a_total)`:          false,
		`summ(atoll_a_total)`:                      false,
		`sum(atoll_a_total`:                        false,
		`sum(atoll_a_total{cluster="$other}`:       false,
		`max by (cluster) (queue_depth{name="x"})`: false,
	} {
		if _, err := checkExpression(known, text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func knownMetrics(t *testing.T) map[string][]string {
	known := labelsByMetric(t)
	maps.Copy(known, upstreamLabels())
	return known
}

// TestAlertsAreValid: every alert uses metrics that exist, says what it means and what to do next,
// and is in docs/metrics.md.
func TestAlertsAreValid(t *testing.T) {
	var rules struct {
		Kind string `json:"kind"`
		Spec struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         string            `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "../deploy/monitoring/alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	page := readFile(t, "../docs/metrics.md")
	known, total := knownMetrics(t), 0
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			total++
			e, err := checkExpression(known, r.Expr)
			if err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			if !strings.ContainsAny(r.Expr, "<>=") {
				t.Errorf("%s compares nothing: it always fires", r.Alert)
			}
			for _, text := range []string{"summary", "description", "action"} {
				if len(r.Annotations[text]) < 10 {
					t.Errorf("%s has no %s", r.Alert, text)
				}
				for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(r.Annotations[text], -1) {
					if !slices.Contains(e.labels, m[1]) {
						t.Errorf("%s names label %s, which its expression has not: %v", r.Alert, m[1], e.labels)
					}
				}
			}
			if !strings.Contains(page, fmt.Sprintf("\n| `%s` | %s | ", r.Alert, r.Labels["severity"])) {
				t.Errorf("docs/metrics.md does not list %s with severity %q", r.Alert, r.Labels["severity"])
			}
		}
	}
	if rows := strings.Count(page, "\n| `Atoll"); rows != total || total == 0 || rules.Kind != "PrometheusRule" {
		t.Errorf("%d alerts, and %d rows in docs/metrics.md", total, rows)
	}
}

// TestDashboardIsValid: every panel uses metrics that exist, and panels do not overlap.
func TestDashboardIsValid(t *testing.T) {
	type place struct{ X, Y, W, H int }
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos place
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(readFile(t, "../deploy/monitoring/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	known, ids, taken := knownMetrics(t), map[int]bool{}, map[[2]int]string{}
	var rows []string
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have ID %d", p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s and %s overlap, or are outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			e, err := checkExpression(known, target.Expr)
			if err != nil {
				t.Errorf("%s: %v", p.Title, err)
			}
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(e.labels, m[1]) {
					t.Errorf("%s: the legend names label %s, which the expression has not", p.Title, m[1])
				}
			}
		}
	}
	if want := []string{"API and keyspace", "Fleet", "Infrastructure"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
