"""The completion script of each shell. All call `satchel completion --words -- LINE...`, which prints a word
and its description per line, separated by a tab.
"""

BASH = r"""# satchel completion for bash: eval "$(satchel completion bash)" in ~/.bashrc
_satchel() {
    local word about line current="${COMP_WORDS[COMP_CWORD]}"
    [ "$current" = "=" ] && current=""
    COMPREPLY=()
    while IFS=$'\t' read -r word about; do
        if [ "$word" = ":files" ]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$current")
        else
            [[ "$COMP_WORDBREAKS" == *=* ]] && [[ "$word" == --*=* ]] && word="${word#*=}"
            COMPREPLY+=("$word")
        fi
    done < <("${COMP_WORDS[0]}" completion --words -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}  # names such as hf:USER/REPO:Q4_K_M are one word
complete -F _satchel satchel
"""

ZSH = r"""#compdef satchel
# satchel completion for zsh: eval "$(satchel completion zsh)" in ~/.zshrc, behind compinit
_satchel() {
    local -a found
    local word about files=""
    while IFS=$'\t' read -r word about; do
        if [[ "$word" == ":files" ]]; then
            files=1
        else
            found+=("${word//:/\\:}${about:+:$about}")
        fi
    done < <("${words[1]}" completion --words -- "${(@)words[1,CURRENT]}" 2>/dev/null)
    (( ${#found} )) && _describe satchel found
    [[ -n "$files" ]] && _files
}
if [[ "${funcstack[1]}" == "_satchel" ]]; then _satchel "$@"; else compdef _satchel satchel; fi
"""

FISH = r"""# satchel completion for fish: satchel completion fish > ~/.config/fish/completions/satchel.fish
function __satchel_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] completion --words -- $words 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c satchel -f -a '(__satchel_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
