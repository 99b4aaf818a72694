package apply_test

import (
	"strings"
	"testing"
)

// TestMistakesGetRemedies: each mistake in an object or a command is answered with the place and the remedy.
func TestMistakesGetRemedies(t *testing.T) {
	t.Parallel()
	w := sharedServer(t)
	const secret = "hunter2-in-plain-text"
	demo := func(kind, name, spec string) string {
		return "{apiVersion: demo.providers.atoll.dev/v1, kind: " + kind + ", metadata: {name: " + name + "}, spec: {name: " + name + ", " + spec + "}}\n---\n"
	}

	t.Log("mistakes in objects")
	for manifest, want := range map[string]string{
		demo("Network", "a", "cidr: [10.0.0.0/8]"):                                                           "spec.cidr: Invalid value: \"a list\": must be a string; put it in quotes",
		demo("Network", "a", "cdir: x"):                                                                      `unknown field "spec.cdir"`,
		strings.Replace(network("a", "x"), "name: a, cidr", "cidr", 1):                                       "spec.name: Required value: the provider requires it",
		demo("Secret", "a", "secret: "+secret):                                                               "use {secretKeyRef: {name: …, key: …}}",
		demo("File", "a", `content: '${demo_network["a"'`):                                                   "write $${ for a literal ${",
		demo("File", "a", "content: x, depends_on: [garbage]"):                                               `spec.depends_on[0]: Invalid value: "garbage" is not a reference: write TYPE["name"]`,
		demo("File", "a", "content: x, lifecycle: {ignore_changes: [contents]}"):                             "unknown field; did you mean content?",
		demo("Nothing", "a", "content: x"):                                                                   `no matches for kind "Nothing"`,
		strings.Replace(network("a", "x"), "demo.providers", "gone.providers", 1):                            `no matches for kind "Network" in version "gone.providers.atoll.dev/v1"`,
		"{apiVersion: infra.atoll.dev/v1alpha1, kind: Plan, metadata: {name: rolls}, spec: {mode: Perhaps}}": "spec.mode: Unsupported value",
	} {
		w.refused(t, manifest, []string{"create", "-f", "-"}, want)
	}
	if _, err := w.tryKubectl(t.Context(), demo("Secret", "a", "secret: "+secret), "create", "-f", "-"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("the error about a plain-text secret contains it: %v", err)
	}

	for _, how := range [][]string{{"create"}, {"apply"}, {"apply", "--server-side"}} {
		// As in OpenTofu, a whole number may stand for a string.
		if _, err := w.tryKubectl(t.Context(), demo("Network", "number", "cidr: 10, tags: {port: 8080, public: true}"), append(how, "--dry-run=server", "-f", "-")...); err != nil {
			t.Errorf("%v: %v", how, err)
		}
	}

	t.Log("mistakes in plans")
	w.atoll(t, "plan").expect(t, 0, "No resources of a Provider's kind found", "in namespace default")
	w.apply(t, network("net", "10.1.0.0/16")+
		demo("File", "type", `content: '${demo_netwrk["net"].id}'`)+
		demo("File", "object", `content: '${demo_network["none"].id}'`)+
		demo("File", "attribute", `content: '${demo_network["net"].idd}'`)+
		demo("File", "value", `content: '${demo_network["net"].tags}'`)+
		demo("File", "refused", "content: x, mode: '999'")+
		demo("File", "config", "content: x, provider: other")+
		demo("File", "map", `content: '${k8s.ConfigMap["none"].data.x}'`)+
		demo("Secret", "key", "secret: {secretKeyRef: {name: none, key: k}}")+
		demo("File", "one", `content: '${demo_file["two"].path}'`)+demo("File", "two", `content: '${demo_file["one"].path}'`))
	w.atoll(t, "plan").expect(t, 1, "1 to add",
		`File.demo.providers.atoll.dev/type, spec.content: namespace["default"].demo_netwrk["net"] has a type that no installed Provider serves: correct the reference, or install the Provider`,
		`/object, spec.content: namespace["default"].demo_network["none"] does not exist: create it, or correct the reference`,
		`/attribute, spec.content: ${demo_network["net"].idd}: demo_network["net"] has no "idd": it has cidr, gateway, id, name, tags, zone`,
		`/value, spec.content: the expression's value has the wrong type: string required, but have map of string`,
		`/refused, spec.mode: the provider rejected the configuration: The value is not valid: "999" must have only a zero and three octal digits; change its spec`,
		`/config, spec.provider: ProviderConfig "other" in namespace "default" not found: create it with spec.provider: demo`,
		`/map, spec.content: ${k8s.ConfigMap["none"].data.x}: ConfigMap none not found in namespace default`,
		`Secret.demo.providers.atoll.dev/key, spec.secret.secretKeyRef: Secret none not found in namespace default: create it with the key k`,
		`/one: reference cycle: namespace["default"].demo_file["one"] → namespace["default"].demo_file["two"] → namespace["default"].demo_file["one"]: remove one of these references`,
		"10 problems prevented resources from being planned: fix the errors above and plan again")
	w.atoll(t, "graph").expect(t, 0, "dependency cycle: File/one → File/two → File/one", "Network/none (missing)")
	w.atoll(t, "apply", "--auto-approve").expect(t, 1, "--auto-approve does not apply a plan that leaves out resources")
	w.atoll(t, "plan", "--target", "file/none").expect(t, 1, "spec.targets[0]: File none not found in namespace default: neither an object nor a state exists")
	w.atoll(t, "plan", "--target", "none/none").expect(t, 1, "no Provider serves kind none: check `kubectl api-resources")
	w.atoll(t, "plan", "-l", "part=none").expect(t, 0, "No resources of a Provider's kind found")
	w.atoll(t, "plan", "-n", "none").expect(t, 1, "kubectl create namespace none")
	w.atoll(t, "import", "network", "imported", "demo_network-1").expect(t, 1, "spec.cidr: Required value", "the next plan imports the resource",
		"  annotations: {infra.atoll.dev/import-id: \"demo_network-1\"}\nspec:\n  cidr:   # required\n  name:   # required")
	if made := w.kubectl(t, "get", "networks", "imported", "-o", "name", "--ignore-not-found"); made != "" {
		t.Errorf("an object that no plan can use was made: %s", made)
	}
	w.apply(t, "{apiVersion: demo.providers.atoll.dev/v1, kind: Network, metadata: {name: imported, annotations: {infra.atoll.dev/import-id: demo_network-1}}, spec: {name: x, cidr: y}}")
	w.atoll(t, "plan", "--target", "network/imported").expect(t, 1, "/imported: the resource cannot be imported: There is nothing to import")
	w.atoll(t, "rollback", "apply-1").expect(t, 1, "apply apply-1 not found in namespace default")
	w.kubectl(t, "delete", "files,secrets.demo.providers.atoll.dev", "--all")
	w.kubectl(t, "delete", "network.demo.providers.atoll.dev", "imported")

	t.Log("mistakes in applies")
	w.apply(t, demo("Flaky", "warns", "warn: the disk is nearly full")+demo("File", "kept", "content: x, lifecycle: {prevent_destroy: true}")+
		demo("Flaky", "flaky", "faults: [{call: create, when: before, times: 1, message: no more room}]")+demo("File", "later", `content: '${demo_flaky["flaky"].id}'`))
	plan := w.createPlan(t)
	const warning = "Warnings:\n  Flaky.demo.providers.atoll.dev/warns, spec.warn: A warning, as told: the disk is nearly full"
	w.atoll(t, "show", plan).expect(t, 0, warning)
	w.atoll(t, "apply", plan).expect(t, 1, "is not approved", "`atoll approve "+plan)
	w.atoll(t, "approve", plan).expect(t, 1, "use --yes, or --digest")
	w.atoll(t, "approve", plan, "--digest", otherDigest).expect(t, 1, "review it again with `atoll show "+plan)
	w.atoll(t, "approve", plan, "--yes").expect(t, 0)
	w.atoll(t, "approve", plan, "--yes").expect(t, 0, "You have already approved this plan", "each user counts once")
	w.atoll(t, "approve", "none").expect(t, 1, "plan none not found in namespace default: the latest of ")
	w.atoll(t, "cancel", "none").expect(t, 1, "apply none not found in namespace default")
	w.atoll(t, "apply", plan).expect(t, 1, "Flaky.demo.providers.atoll.dev/flaky", "no more room", warning, "3 added", "1 failed, 1 blocked by those", "run `atoll apply -n default` for the rest")
	w.atoll(t, "apply", plan).expect(t, 1, "was already applied: create another")
	w.atoll(t, "approve", plan, "--yes").expect(t, 1, "was already applied: create another")
	apply := strings.TrimPrefix(w.kubectl(t, "get", "applies", "-o", "name"), "apply.infra.atoll.dev/")
	w.atoll(t, "cancel", apply).expect(t, 1, "has already ended: Failed")
	w.refused(t, "", []string{"patch", "apply", apply, "--type=merge", "-p", `{"spec":{"plan":"other"}}`}, "the plan of an apply is immutable: create another apply")
	w.refused(t, "", []string{"patch", "plan", plan, "--type=merge", "-p", `{"spec":{"refresh":true}}`}, "a plan is immutable: create another")
	w.atoll(t, "destroy", "--auto-approve").expect(t, 1, "/kept: the resource must not be destroyed: lifecycle.prevent_destroy is set; set lifecycle.prevent_destroy to false")
	w.atoll(t, "plan", "-f", resourcesFile, "-n", "kube-system").expect(t, 1, "has namespace default, but the plan is for kube-system", "-n default")
	w.atoll(t, "plan", "-f", resourcesFile).expect(t, 0, `demo_file["back-index"] will be created`, "cannot be applied: `kubectl apply` the files")
	speculative := w.createPlan(t, "-f", resourcesFile)
	w.atoll(t, "approve", speculative, "--yes").expect(t, 1, "is speculative, because it was created with -f")
	w.refused(t, approval(speculative, w.digest(t, speculative)), []string{"create", "-f", "-"}, "create a plan without spec.objects")
}
