package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/playground/member"
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
	fmt.Fprintf(o.w, "%6.1fs  %-6s %s\n", time.Since(o.began).Seconds(), part, what)
}

// whatNext is the text that a newcomer reads when all is up.
func (o *output) whatNext(dir string, members []*member.Cluster) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kubectl, note := "kubectl", ""
	if !haveKubectl() {
		kubectl = filepath.Join("bin", "kubectl")
		note = "There is no kubectl on this machine: `make kubectl` builds bin/kubectl.\n\n"
	}
	var kubeconfigs strings.Builder
	for _, m := range members {
		fmt.Fprintf(&kubeconfigs, "  %-6s %s\n", m.Name, filepath.Join(dir, m.Name+".kubeconfig"))
	}
	fmt.Fprintf(o.w, `
Atoll runs, with %d real clusters. Kubeconfigs:
  atoll  %s
%s
%sTry, in another terminal:
  export KUBECONFIG=%s
  %s get clusters
  %s create deployment web --image=nginx --replicas=9
  %s get deployment web --watch
and see its share in one of them:
  %s --kubeconfig %s get deployments --all-namespaces

Logs are in %s. Ctrl-C stops everything; the data stays in %s.
`,
		len(members), filepath.Join(dir, "atoll.kubeconfig"), kubeconfigs.String(), note,
		filepath.Join(dir, "atoll.kubeconfig"), kubectl, kubectl, kubectl,
		kubectl, filepath.Join(dir, members[0].Name+".kubeconfig"),
		filepath.Join(dir, "logs"), dir)
}
