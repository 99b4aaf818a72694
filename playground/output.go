package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/playground/member"
	"github.com/atoll-dev/atoll/playground/system"
)

// output tells the user what happens, with the seconds since the start.
type output struct {
	began time.Time

	mu sync.Mutex
	w  io.Writer
}

func newOutput(w io.Writer) *output { return &output{began: time.Now(), w: w} }

func (o *output) step(part, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(o.w, "%6.1fs  %-8s %s\n", time.Since(o.began).Seconds(), part, what)
}

// whatNext is the text that a newcomer reads when all is up.
func (o *output) whatNext(dir string, servers int, members []*member.Cluster) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kubectl, note := "kubectl", ""
	if !haveKubectl() {
		kubectl = filepath.Join("bin", "kubectl")
		note = "There is no kubectl on this machine: `make kubectl` builds bin/kubectl.\n\n"
	}
	var kubeconfigs strings.Builder
	for i := range servers {
		name := system.ServerName(i)
		fmt.Fprintf(&kubeconfigs, "  %-8s %s\n", name, filepath.Join(dir, name+".kubeconfig"))
	}
	for _, m := range members {
		fmt.Fprintf(&kubeconfigs, "  %-8s %s\n", m.Name, filepath.Join(dir, m.Name+".kubeconfig"))
	}
	several := ""
	if servers > 1 {
		several = "The servers are equal: any of their kubeconfigs will do. End one of their processes and go on with another.\n\n"
	}
	fmt.Fprintf(o.w, `
Atoll runs, with %d real clusters. Kubeconfigs:
%s
%s%sTry, in another terminal:
  export KUBECONFIG=%s
  %s get clusters
  %s create deployment web --image=nginx --replicas=9
  %s get deployment web --watch
and see its share in one of them:
  %s --kubeconfig %s get deployments --all-namespaces

Logs are in %s. Ctrl-C stops everything; the data stays in %s.
`,
		len(members), kubeconfigs.String(), several, note,
		filepath.Join(dir, "atoll.kubeconfig"), kubectl, kubectl, kubectl,
		kubectl, filepath.Join(dir, members[0].Name+".kubeconfig"),
		filepath.Join(dir, "logs"), dir)
}
