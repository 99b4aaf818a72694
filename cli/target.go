package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// target says which Atoll a command talks to. Its flags have a prefix because
// --kubeconfig and --context mean the member cluster in `atoll join`; plain is
// of commands that know no other cluster, and have kubectl's flags.
type target struct {
	kubeconfig, context string
	plain               bool
}

func (t *target) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&t.kubeconfig, "atoll-kubeconfig", "", "Kubeconfig of the Atoll to talk to. The default is what kubectl would use: $KUBECONFIG, or ~/.kube/config.")
	flags.StringVar(&t.context, "atoll-context", "", "Context in that kubeconfig. The default is its current context.")
}

// addPlainFlags adds them without the prefix, and hidden with it for whoever is used to it.
func (t *target) addPlainFlags(flags *pflag.FlagSet) {
	t.plain = true
	flags.StringVar(&t.kubeconfig, "kubeconfig", "", "Kubeconfig of the Atoll to talk to. The default is what kubectl would use: $KUBECONFIG, or ~/.kube/config.")
	flags.StringVar(&t.context, "context", "", "Context in that kubeconfig. The default is its current context.")
	t.addFlags(flags)
	flags.Lookup("atoll-kubeconfig").Hidden = true
	flags.Lookup("atoll-context").Hidden = true
}

func (t *target) loading() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = t.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: t.context})
}

func (t *target) config() (*rest.Config, error) {
	prefix := "--atoll-"
	if t.plain {
		prefix = "--"
	}
	config, err := t.loading().ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		if missing := missingKubeconfigs(); len(missing) > 0 {
			return nil, fmt.Errorf("no kubeconfig leads to an Atoll: KUBECONFIG names %s, which cannot be read: correct it, or name the admin.kubeconfig of one with %skubeconfig",
				strings.Join(missing, " and "), prefix)
		}
		return nil, fmt.Errorf("no kubeconfig leads to an Atoll: name its admin.kubeconfig with %skubeconfig, or in KUBECONFIG", prefix)
	case err != nil:
		return nil, fmt.Errorf("find the Atoll to talk to: %w: give %skubeconfig the kubeconfig of one (its admin.kubeconfig, say), and %scontext a context in it", err, prefix, prefix)
	}
	config.UserAgent = "atoll"
	return config, nil
}

// missingKubeconfigs are files that KUBECONFIG names and that are not there: those are passed over, as kubectl does.
func missingKubeconfigs() []string {
	var out []string
	for _, file := range filepath.SplitList(os.Getenv(clientcmd.RecommendedConfigPathEnvVar)) {
		if _, err := os.Stat(file); file != "" && err != nil {
			out = append(out, file)
		}
	}
	return out
}
