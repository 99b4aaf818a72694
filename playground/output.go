package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/node"
	"github.com/atoll-dev/atoll/playground/system"
)

// output prints progress for the user, with the seconds since the start.
type output struct {
	began time.Time

	mu sync.Mutex
	w  io.Writer
}

func newOutput(w io.Writer) *output { return &output{began: time.Now(), w: w} }

func (o *output) step(part, step string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(o.w, "%6.1fs  %-11s %s\n", time.Since(o.began).Seconds(), part, step)
}

func (o *output) newline() {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintln(o.w)
}

// whatNext prints the commands to try when everything is up.
func (o *output) whatNext(opts options, servers []string, members []*member.Cluster) {
	dir := opts.dir
	o.mu.Lock()
	defer o.mu.Unlock()
	kubectl, note := "kubectl", ""
	if !haveKubectl() {
		kubectl = filepath.Join("bin", "kubectl")
		note = "There is no kubectl on this machine: `make kubectl` builds bin/kubectl.\n\n"
	}
	var kubeconfigs strings.Builder
	for _, name := range servers {
		fmt.Fprintf(&kubeconfigs, "  %-11s %s\n", name, filepath.Join(dir, name+".kubeconfig"))
	}
	for _, m := range members {
		fmt.Fprintf(&kubeconfigs, "  %-11s %s\n", m.Name, filepath.Join(dir, m.Name+".kubeconfig"))
	}
	image := "nginx"
	if opts.kubelets {
		image = node.Image // real nodes have no registry
	}
	several := ""
	last := members[len(members)-1].Name
	switch {
	case opts.topology == stretched:
		several = "Each cluster has a server of Atoll. They are equal: any of their kubeconfigs will do.\n\n"
	case len(servers) > 1:
		several = "The servers are equal: any of their kubeconfigs will do.\n\n"
		last = servers[len(servers)-1]
	}
	fmt.Fprintf(o.w, `
Atoll runs, with %d real clusters. Kubeconfigs:
%s
%s%sTry, in another terminal:
  export KUBECONFIG=%s
  %s get clusters
  %s create deployment web --image=%s --replicas=9
  %s get deployment web --watch
and see its share in one of them:
  %s --kubeconfig %s get deployments --all-namespaces
%s%sand what happens without %s:
  go run ./playground --dir %s pull %s
  go run ./playground --dir %s return %s

Logs are in %s. Ctrl-C stops everything; the data stays in %s.
`,
		len(members), kubeconfigs.String(), several, note,
		filepath.Join(dir, servers[0]+".kubeconfig"), kubectl, kubectl, image, kubectl,
		kubectl, filepath.Join(dir, members[0].Name+".kubeconfig"),
		sharedNext(kubectl, dir, members), providersNext(kubectl, opts), last, dir, last, dir, last,
		filepath.Join(dir, "logs"), dir)
}

// providersNext returns the commands to try with infrastructure.
func providersNext(kubectl string, opts options) string {
	if !opts.providers {
		return ""
	}
	return fmt.Sprintf(`and twenty resources of a provider (make build, for bin/atoll):
  %s apply -f %s
  %s wait --for=condition=Served provider/%s
  %s apply -f examples/infra/resources.yaml
  bin/atoll apply
`, kubectl, filepath.Join(opts.dir, providerFile), kubectl, demoProvider, kubectl)
}

// sharedNext returns the commands to try with the shared kind.
func sharedNext(kubectl, dir string, members []*member.Cluster) string {
	if !system.ServesMembers() {
		return ""
	}
	one, other := members[0].Name, members[len(members)-1].Name
	return fmt.Sprintf(`and a note that all clusters share:
  %s --kubeconfig %s apply -f playground/note.yaml
  %s --kubeconfig %s get notes
`,
		kubectl, filepath.Join(dir, one+".kubeconfig"), kubectl, filepath.Join(dir, other+".kubeconfig"))
}
