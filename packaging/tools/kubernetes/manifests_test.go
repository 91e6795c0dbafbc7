package kubernetes

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

// leastGrace is what an ordinary stop may take: stop-grace 10 s, 5 s for what etcd left behind, 5 s of margin. A shorter period
// would have the kubelet kill an etcd that is still stopping.
const leastGrace = 20

// An example that the API refuses, or whose settings do not exist, is found by whoever needs it most.
func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob(root + "/packaging/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	known := settings(t)
	pods := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(content, []byte("\n---\n")) {
			var kind meta.TypeMeta
			if err := yaml.Unmarshal(doc, &kind); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			var pod *core.PodSpec
			switch kind.APIVersion + " " + kind.Kind {
			case "v1 Secret":
				strict(t, file, doc, new(core.Secret))
			case "v1 Service":
				strict(t, file, doc, new(core.Service))
			case "v1 Pod":
				p := new(core.Pod)
				strict(t, file, doc, p)
				pod = &p.Spec
			case "apps/v1 StatefulSet":
				s := new(apps.StatefulSet)
				strict(t, file, doc, s)
				pod = &s.Spec.Template.Spec
				if s.Spec.Replicas == nil || *s.Spec.Replicas != 1 {
					t.Errorf("%s: replicas %v, want 1", file, s.Spec.Replicas)
				}
			default:
				t.Errorf("%s: nobody checks a %s %s", file, kind.APIVersion, kind.Kind)
			}
			if pod != nil {
				pods++
				checkPod(t, file, *pod, known)
			}
		}
	}
	if pods != 2 {
		t.Errorf("%d pods checked, want 2", pods)
	}
}

func strict(t *testing.T, file string, doc []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(doc, into); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

func checkPod(t *testing.T, file string, pod core.PodSpec, known map[string]bool) {
	t.Helper()
	if pod.TerminationGracePeriodSeconds == nil || *pod.TerminationGracePeriodSeconds < leastGrace {
		t.Errorf("%s: terminationGracePeriodSeconds %v, want at least %d", file, pod.TerminationGracePeriodSeconds, leastGrace)
	}
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
		t.Errorf("%s: service links make WARDEN_* variables of a service named warden", file)
	}
	c := pod.Containers[0]
	if len(c.Command) == 0 || c.Command[0] != "etcd" {
		t.Errorf("%s: command %q is not the drop-in", file, c.Command)
	}
	for name, probe := range map[string]*core.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != name {
			t.Errorf("%s: no probe of %s", file, name)
		}
	}
	if c.StartupProbe != nil {
		t.Errorf("%s: a startup probe would end a warden that waits for ownership", file)
	}
	if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		t.Errorf("%s: the container is not locked down", file)
	}
	for _, e := range c.Env {
		if name, ours := strings.CutPrefix(e.Name, "WARDEN_"); ours && !known[strings.ToLower(strings.ReplaceAll(name, "_", "-"))] {
			t.Errorf("%s: %s is not a setting", file, e.Name)
		}
		if e.Name == "AWS_SECRET_ACCESS_KEY" {
			t.Errorf("%s: a secret in plain text", file)
		}
	}
}

// settings are those of the generated reference.
func settings(t *testing.T) map[string]bool {
	t.Helper()
	content, err := os.ReadFile(root + "/docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)`").FindAllStringSubmatch(string(content), -1) {
		known[m[1]] = true
	}
	return known
}
