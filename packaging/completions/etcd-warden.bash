# bash completion: the program itself says what may follow.
_etcd_warden() {
	local current=${COMP_WORDS[COMP_CWORD]} before=("${COMP_WORDS[@]:0:COMP_CWORD}")
	case "$current" in
	-*) before+=("$current") ;;
	esac
	local IFS=$'\n'
	COMPREPLY=($(compgen -W "$("${before[@]}" --generate-bash-completion 2>/dev/null)" -- "$current"))
}
complete -o bashdefault -o default -o nospace -F _etcd_warden etcd-warden
