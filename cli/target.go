package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// target says which Atoll a command talks to. Its flags have a prefix because
// --kubeconfig and --context mean the member cluster in `atoll join`.
type target struct{ kubeconfig, context string }

func (t *target) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&t.kubeconfig, "atoll-kubeconfig", "", "Kubeconfig of the Atoll to talk to. The default is what kubectl would use: $KUBECONFIG, or ~/.kube/config.")
	flags.StringVar(&t.context, "atoll-context", "", "Context in that kubeconfig. The default is its current context.")
}

func (t *target) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = t.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: t.context}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no kubeconfig leads to an Atoll: name its admin.kubeconfig with --atoll-kubeconfig, or in KUBECONFIG")
	case err != nil:
		return nil, fmt.Errorf("find the Atoll to talk to: %w: give --atoll-kubeconfig the kubeconfig of one (its admin.kubeconfig, say), and --atoll-context a context in it", err)
	}
	config.UserAgent = "atoll"
	return config, nil
}
