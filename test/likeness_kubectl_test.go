package test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/atoll-dev/atoll/test/programs"
)

// kubectlFlows are what people do with kubectl.
func kubectlFlows() []flow {
	return []flow{
		{"write", writeByKubectl},
		{"change", changeByKubectl},
		{"apply", applyByKubectl},
		{"read", readByKubectl},
		{"schema", schemaByKubectl},
		{"wait", waitByKubectl},
		{"delete", deleteByKubectl},
	}
}

func writeByKubectl(s *side) {
	s.file("a.yaml", gadget("a", "color: red, size: 2"))
	s.kubectl("create", "-f", "a.yaml", "--dry-run=server", "-o", "yaml")
	s.kubectl("get", "gadgets")
	s.kubectl("create", "-f", "a.yaml", "--save-config")
	s.kubectl("create", "-f", "a.yaml")
	s.kubectl("get", "gadget", "a", "-o", "json", "--show-managed-fields")

	s.file("typo.yaml", gadget("typo", "colour: red"))
	s.kubectl("create", "-f", "typo.yaml")
	s.kubectl("create", "-f", "typo.yaml", "--validate=warn")
	s.kubectl("delete", "-f", "typo.yaml")
	s.kubectl("create", "-f", "typo.yaml", "--validate=ignore", "-o", "jsonpath={.spec}")
	s.kubectl("apply", "-f", "typo.yaml", "--server-side")

	s.file("wrong.yaml", gadget("wrong", "color: pink"))
	s.kubectl("create", "-f", "wrong.yaml")
	s.file("over.yaml", gadget("over", "size: 5, limit: 4"))
	s.kubectl("create", "-f", "over.yaml")
	s.file("empty.yaml", "apiVersion: "+likeGroup+"/v1\nkind: Gadget\nmetadata: {name: empty}\n")
	s.kubectl("create", "-f", "empty.yaml")
	s.file("name.yaml", gadget("Not_a_name", "size: 1"))
	s.kubectl("create", "-f", "name.yaml")
	s.file("kind.yaml", strings.Replace(gadget("kind", "size: 1"), "Gadget", "Gizmo", 1))
	s.kubectl("create", "-f", "kind.yaml")
	s.file("generated.yaml", strings.Replace(gadget("x", "size: 1"), "name: x", "generateName: made-", 1))
	s.kubectl("create", "-f", "generated.yaml")

	// Defaults, pruning, and fields that are preserved.
	s.file("pruned.yaml", gadget("pruned", "color: blue, nonsense: 1, anything: {of: {any: [kind, 1, null]}}, amount: 10%, settings: {a: b}"))
	s.kubectl("create", "-f", "pruned.yaml", "--validate=ignore", "-o", "yaml")

	s.kubectl("get", "gadget", "a", "--as", "alice")
	s.kubectl("create", "-f", "pruned.yaml", "--as", "alice", "--validate=ignore")
	s.kubectl("delete", "gadget", "a", "--as", "alice")
	s.kubectl("get", "gadgets", "--as", "bob")
}

func changeByKubectl(s *side) {
	s.file("b.yaml", gadget("b", "color: green, size: 2, serial: A1, parts: [{name: p, count: 1}]"))
	s.kubectl("create", "-f", "b.yaml")
	s.kubectl("edit", "gadget", "b")
	s.kubectl("patch", "gadget", "b", "--type=merge", "-p", `{"spec":{"size":4,"parts":[{"name":"q"}]}}`)
	s.kubectl("patch", "gadget", "b", "--type=json", "-p", `[{"op":"replace","path":"/spec/size","value":5}]`, "-o", "yaml")
	s.kubectl("patch", "gadget", "b", "--type=json", "-p", `[{"op":"remove","path":"/spec/none"}]`)
	s.kubectl("patch", "gadget", "b", "--type=strategic", "-p", `{"spec":{"size":4}}`)
	s.kubectl("patch", "gadget", "b", "--type=merge", "-p", `{"spec":{"serial":"B2"}}`)
	s.kubectl("patch", "gadget", "b", "--type=merge", "-p", `{"spec":{"sise":4}}`)

	// A status is written by itself.
	s.kubectl("patch", "gadget", "b", "--type=merge", "-p", `{"status":{"phase":"Ignored"},"spec":{"size":6}}`, "-o", "jsonpath={.status}{.spec.size}")
	s.kubectl("patch", "gadget", "b", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Well","copies":2,"selector":"a=b"},"spec":{"size":7}}`, "-o", "yaml")
	s.kubectl("get", "gadget", "b", "--subresource=status", "-o", "yaml")
	s.kubectl("get", "gadget", "b", "--subresource=scale", "-o", "yaml")
	s.kubectl("scale", "gadget", "b", "--replicas=4")
	s.kubectl("scale", "gadget", "b", "--replicas=5", "--current-replicas=9")
	s.kubectl("scale", "gadget", "b", "--replicas=-1")
	s.kubectl("scale", "gadget", "b", "--replicas=6", "--dry-run=server")
	s.kubectl("patch", "gadget", "b", "--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":7}}`)
	s.kubectl("get", "gadget", "b", "-o", "jsonpath={.spec.copies} {.metadata.generation}")
	s.kubectl("autoscale", "gadget", "b", "--max=3")
	s.kubectl("delete", "hpa", "b")

	s.kubectl("label", "gadget", "b", "a=b")
	s.kubectl("label", "gadget", "b", "a=c")
	s.kubectl("annotate", "gadget", "--all", "note-", "--dry-run=server")

	s.file("c.yaml", gadget("b", "color: red, serial: A1"))
	s.kubectl("replace", "-f", "c.yaml")
	s.file("old.yaml", strings.Replace(gadget("b", "color: red, serial: A1"), "name: b", `name: b, resourceVersion: "1"`, 1))
	s.kubectl("replace", "-f", "old.yaml")
	s.kubectl("replace", "--force", "-f", "c.yaml")
	s.kubectl("get", "gadget", "b", "-o", "json", "--show-managed-fields")
}

func applyByKubectl(s *side) {
	s.file("d.yaml", gadget("d", "color: red, size: 2, parts: [{name: p, count: 1}], tags: [x]"))
	s.kubectl("diff", "-f", "d.yaml")
	s.kubectl("apply", "-f", "d.yaml")
	s.kubectl("apply", "-f", "d.yaml")
	s.file("d.yaml", gadget("d", "size: 4, parts: [{name: q}], tags: [z]"))
	s.kubectl("diff", "-f", "d.yaml")
	s.kubectl("apply", "-f", "d.yaml", "--dry-run=server", "-o", "yaml")
	s.kubectl("apply", "-f", "d.yaml", "-o", "yaml")
	s.kubectl("diff", "-f", "d.yaml")
	s.file("e.yaml", gadget("e", "size: 1"))
	s.kubectl("apply", "-f", "e.yaml", "--prune", "-l", "kind=gadget", "--prune-allowlist="+likeGroup+"/v1/Gadget")

	// By two managers, on the server.
	s.file("f.yaml", gadget("f", "size: 2, parts: [{name: p, count: 1}], tags: [x]"))
	s.kubectl("apply", "-f", "f.yaml", "--server-side", "--field-manager=one")
	s.file("f2.yaml", gadget("f", "size: 3, parts: [{name: q, count: 1}], tags: [z]"))
	s.kubectl("apply", "-f", "f2.yaml", "--server-side", "--field-manager=two")
	s.kubectl("apply", "-f", "f2.yaml", "--server-side", "--field-manager=two", "--force-conflicts")
	s.kubectl("get", "gadget", "f", "-o", "json", "--show-managed-fields")
	s.file("f.yaml", gadget("f", "limit: 9"))
	s.kubectl("apply", "-f", "f.yaml", "--server-side", "--field-manager=one")
	s.kubectl("get", "gadget", "f", "-o", "json", "--show-managed-fields")
	s.kubectl("apply", "-f", "e.yaml", "--server-side", "--force-conflicts", "-o", "yaml")
	s.kubectl("apply", "-f", "e.yaml")
}

func readByKubectl(s *side) {
	s.kubectl("get", "gadgets")
	var all strings.Builder
	for i, color := range []string{"red", "green", "blue", "red", "blue"} {
		fmt.Fprintf(&all, "---\n%s", gadget(fmt.Sprintf("g%d", i), fmt.Sprintf("color: %s, size: %d, serial: S%d", color, 9-i, i)))
	}
	s.file("g.yaml", all.String())
	s.kubectl("create", "-f", "g.yaml")
	s.kubectl("label", "gadget", "g1", "g2", "tier=two")
	for _, args := range []string{
		"get gadgets", "get gd g1 g3", "get contraptions", "get gadgets.v1." + likeGroup,
		"get gadgets -o wide --sort-by=.spec.size", "get gadget g1 -o json", "get gadgets -o yaml", "get gadget g2 --show-managed-fields -o json",
		"get gadgets --show-kind --show-labels --chunk-size=2", "get gadgets --chunk-size=2 -o name",
		"get gadgets -l tier!=two,kind=gadget -L kind",
		"get gadgets --field-selector=spec.size=3", "get gadgets --field-selector=spec.color!=red,metadata.name!=g2",
		"get gadgets -o jsonpath={.items[*].spec.size}",
		"get gadget g0 none", "get gadgets --server-print=false", "get gadgets,configmaps -l kind=gadget",
		"describe gadgets -l tier=two", "describe gadget none",
		"auth can-i create gadgets", "auth can-i get gadgets --as bob", "auth can-i get nothings." + likeGroup,
	} {
		s.kubectl(strings.Fields(args)...)
	}
	s.watching("get gadgets -w --output-watch-events", "ADDED", 5, func() {
		s.kubectl("label", "gadget", "g3", "watched=yes")
		s.kubectl("delete", "gadget", "g4")
	}, "DELETED")
	s.watching("get gadget g3 -w -o name", "g3", 1, func() { s.kubectl("label", "gadget", "g3", "watched-") }, "g3")
}

// watching runs kubectl while do changes things: from when it has printed so many
// lines with first, until it prints one more with last.
func (s *side) watching(args, first string, count int, do func(), last string) {
	s.say("$ kubectl %s", args)
	cmd := programs.Command(s.t.Context(), s.f.dir, "kubectl", s.f.kubeconfig(s.cluster), append(strings.Fields(args), "-n", s.namespace)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	var seen []string
	until := func(word string, count int) {
		for line := range lines {
			seen = append(seen, line)
			if strings.Contains(line, word) {
				if count--; count == 0 {
					return
				}
			}
		}
		s.t.Errorf("%s: kubectl %s ended after %q", s.cluster, args, seen)
	}
	until(first, count)
	do()
	until(last, 1)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	s.say("%s", strings.Join(seen, "\n"))
}

func schemaByKubectl(s *side) {
	for _, args := range []string{
		"explain gadgets.spec", "explain gd --recursive", "explain gadgets --api-version=" + likeGroup + "/v1",
		"explain gadgets -o plaintext-openapiv2", "explain gadgets.none", "explain widgets --api-version=" + likeGroup + "/v1beta1",
		"get --raw /apis/" + likeGroup + "/v1/namespaces/" + s.namespace + "/gadgets",
		"api-resources --api-group=" + likeGroup + " -o wide", "api-resources --categories=contraptions", "api-resources --api-group=" + likeGroup + " --verbs=patch -o name",
	} {
		if strings.Contains(args, "openapiv2") {
			s.awaitOpenAPIV2()
		}
		s.kubectl(strings.Fields(args)...)
	}
	out, err := s.f.tryKubectl(s.t.Context(), s.cluster, "", "api-versions")
	if err != nil {
		s.t.Error(err)
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, likeGroup) {
			s.say("%s", line)
		}
	}
}

func waitByKubectl(s *side) {
	s.file("w.yaml", gadget("w", "color: red, size: 1"))
	var waits sync.WaitGroup
	outputs := make([]string, 2)
	for i, args := range []string{
		"wait gadget/w --for=create --timeout=30s",
		"wait gadget/none --for=delete --timeout=30s",
	} {
		waits.Go(func() {
			answer := s.ask(strings.Fields(args)...)
			outputs[i] = fmt.Sprintf("$ kubectl %s\n%s%s", args, answer.Out, answer.Errs)
		})
	}
	s.kubectl("create", "-f", "w.yaml")
	waits.Wait()
	s.say("%s", strings.Join(outputs, "\n"))
	for change, condition := range map[string]string{
		`{"status":{"phase":"Well"}}`: "jsonpath={.status.phase}=Well",
		`{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"Bad","status":"False"}]}}`: "condition=Ready",
		`{"status":{"copies":3}}`: "jsonpath={.status.copies}",
	} {
		waited := make(chan string, 1)
		go func() {
			answer := s.ask("wait", "gadget/w", "--for="+condition, "--timeout=30s")
			waited <- answer.Out + answer.Errs
		}()
		if answer := s.ask("patch", "gadget", "w", "--subresource=status", "--type=merge", "-p", change); answer.Code != 0 {
			s.t.Errorf("%s: %s", s.cluster, answer.Errs)
		}
		if said := <-waited; !strings.Contains(said, "condition met") {
			s.t.Errorf("%s: wait for %s says %s", s.cluster, condition, said)
		}
	}
	s.kubectl("wait", "gadget/w", "--for=condition=Bad=False", "--timeout=10s")
	s.kubectl("wait", "gadget/w", "--for=condition=None", "--timeout=1s")
	s.kubectl("wait", "gadget/w", "--for=jsonpath={.spec.size}=7", "--timeout=1s")
	s.kubectl("wait", "gadget/none", "--for=condition=Ready", "--timeout=1s")
	gone := make(chan programs.Answer, 1)
	go func() { gone <- s.ask("wait", "gadget/w", "--for=delete", "--timeout=30s") }()
	s.kubectl("delete", "gadget", "w")
	if answer := <-gone; answer.Code != 0 {
		s.t.Errorf("%s: wait for the deletion: %s", s.cluster, answer.Errs)
	}
}

func deleteByKubectl(s *side) {
	s.file("h.yaml", gadget("h", "size: 1")+"---\n"+gadget("i", "size: 1")+"---\n"+gadget("j", "size: 1")+"---\n"+gadget("k", "size: 1")+"---\n"+gadget("l", "size: 1"))
	s.kubectl("create", "-f", "h.yaml")
	s.kubectl("delete", "gadget", "h", "--dry-run=server")
	s.kubectl("delete", "gadget", "h", "--cascade=background")
	s.kubectl("delete", "gadget", "i", "--cascade=orphan")
	s.kubectl("delete", "gadget", "j", "--cascade=foreground")
	s.kubectl("delete", "gadget", "none")
	s.kubectl("delete", "gadget", "--all")

	// A finalizer holds it, and lets it be changed but not taken back.
	s.file("m.yaml", strings.Replace(gadget("m", "size: 1"), "name: m", "name: m, finalizers: [test.atoll.dev/held]", 1))
	s.kubectl("create", "-f", "m.yaml")
	s.kubectl("delete", "gadget", "m", "--wait=false")
	s.kubectl("delete", "gadget", "m", "--timeout=1s")
	s.kubectl("get", "gadget", "m", "-o", "yaml")
	s.kubectl("patch", "gadget", "m", "--type=merge", "-p", `{"metadata":{"finalizers":["test.atoll.dev/held","test.atoll.dev/more"]}}`)
	s.kubectl("patch", "gadget", "m", "--type=merge", "-p", `{"spec":{"size":2}}`)
	s.kubectl("patch", "gadget", "m", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	s.kubectl("get", "gadget", "m")

	// The collector of whoever keeps the objects.
	s.file("n.yaml", gadget("owner", "size: 1"))
	s.kubectl("create", "-f", "n.yaml")
	owner := s.ask("get", "gadget", "owner", "-o", "jsonpath={.metadata.uid}")
	if owner.Code != 0 {
		s.t.Errorf("%s: %s", s.cluster, owner.Errs)
	}
	owned := func(name string) string {
		return strings.Replace(gadget(name, "size: 1"), "name: "+name, fmt.Sprintf(
			"name: %s, ownerReferences: [{apiVersion: %s/v1, kind: Gadget, name: owner, uid: %s, blockOwnerDeletion: true}]", name, likeGroup, owner.Out), 1)
	}
	s.file("o.yaml", owned("o"))
	s.kubectl("create", "-f", "o.yaml")
	s.kubectl("delete", "gadget", "owner", "--cascade=foreground", "--timeout=60s")
	s.eventually("its dependents are collected", func(context.Context) error {
		if left := s.ask("get", "gadgets", "-o", "name"); left.Code != 0 || left.Out != "" {
			return errors.New(left.Out + left.Errs)
		}
		return nil
	})
}
